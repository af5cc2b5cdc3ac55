"""A run names the code, the machine and the data of its numbers."""

import subprocess

import torch

import fl_app
from fl_app.running import origin


def test_the_data_and_the_threads_are_named():
    first, again = (origin.origin_of([torch.arange(4.0), torch.arange(4)]) for _ in range(2))
    other = origin.origin_of([torch.arange(4.0), torch.tensor([0, 1, 2, 4])])
    assert first == again
    assert first.test_data != other.test_data
    assert first.threads == torch.get_num_threads()
    assert first.processor


def test_a_checkout_is_named_by_its_commit_and_its_changes(tmp_path, monkeypatch):
    def git(*words):
        given = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *given, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    package = tmp_path / "fl_app" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(fl_app, "__file__", str(package))
    assert origin.origin_of([]).commit is None
    origin._of_checkout.cache_clear()
    (tmp_path / "constraints.txt").write_text("torch==1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    clean = origin.origin_of([])
    assert (clean.commit, clean.changed) == (git("rev-parse", "HEAD"), False)
    package.write_text("changed = 1\n")
    (tmp_path / "constraints.txt").write_text("torch==2\n")
    origin._of_checkout.cache_clear()
    changed = origin.origin_of([])
    assert changed.changed
    assert changed.lock != clean.lock
    origin._of_checkout.cache_clear()
