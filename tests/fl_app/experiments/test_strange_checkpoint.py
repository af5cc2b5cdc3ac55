"""A checkpoint of a stranger is data: going on with it runs none of the code that it names."""

import os

import pytest
from federations import SMALL

from fl_app.config.compose import ConfigError, quote, split_overrides
from fl_app.experiments.job import run_job
from fl_app.running.checkpoint import VERSION
from fl_app.storage.tree_file import write_tree

EMPTY = {
    "version": VERSION,
    "refusal": None,
    "config": {},
    "versions": {},
    "run_key": "",
    "strategy": {},
    "rows": [],
    "seconds": 0.0,
    "resumed": [],
    "notes": [],
    "seen": [],
    "clients": None,
}


@pytest.fixture
def hostile(tmp_path):
    """Return a function that makes a run folder with chosen overrides in its checkpoint."""

    def make(overrides):
        (tmp_path / "run" / "checkpoint").mkdir(parents=True)
        write_tree(tmp_path / "run" / "checkpoint" / "state", EMPTY | {"overrides": overrides})
        return tmp_path / "run"

    return make


def resume(folder, *more):
    return run_job([f"resume={quote(folder)}", *split_overrides(SMALL), *more])


ATTACKS = {
    "a command": ["data=custom", "data._target_=subprocess.getoutput", "+data.cmd='touch {mark}'"],
    "a script": ["data=custom", "data._target_=runpy.run_path", "+data.path_name={script}"],
    "a statement": ["data=custom", "data._target_=timeit.timeit", '+data.stmt=\'open("{mark}", "w")\''],
    "a pickle": ["data=custom", "data._target_=torch.load", "+data.f={script}", "+data.weights_only=false"],
    "a nested target": ["+data.extra={{_target_: subprocess.getoutput, cmd: 'touch {mark}'}}"],
    "a list of targets": ["+data.extra=[{{_target_: subprocess.getoutput, cmd: 'touch {mark}'}}]"],
    "a strategy": ["strategy._target_=subprocess.getoutput"],
    "a variable of the environment": ["data=imagefolder", "data.root=${{oc.env:HOME}}/nothing"],
    "a search path": ["hydra.searchpath=[file:///tmp]"],
    "what cannot be composed alone": ["data=custom", "data._target_=subprocess.getoutput", "nonsense=3"],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_strange_checkpoint_runs_nothing(attack, hostile, tmp_path):
    mark, script = tmp_path / "mark", tmp_path / "script.py"
    script.write_text(f"open({str(mark)!r}, 'w')")
    folder = hostile([line.format(mark=mark, script=script) for line in ATTACKS[attack]])
    with pytest.raises(ConfigError):
        resume(folder)
    assert not mark.exists()


@pytest.mark.parametrize("consent", ["none", "typed", "environment"])
def test_who_repeats_a_target_or_allows_it_consents(consent, hostile, monkeypatch):
    target = "own_parts.tiny_model"
    folder = hostile(["model=custom", f"model._target_={target}", "+model.width=4"])
    if consent == "environment":
        monkeypatch.setenv("FL_APP_ALLOW_TARGETS", target)
    with pytest.raises(ConfigError) as refused:
        resume(folder, *([f"model._target_={target}"] if consent == "typed" else []))
    # with consent, what is left to object to is that the folder's config is not that of the overrides
    assert ("the run goes on as it was begun" in str(refused.value)) == (consent != "none")


def test_a_link_in_a_strange_folder_is_not_followed(hostile, tmp_path):
    folder = hostile([])
    (tmp_path / "victim").write_text("precious")
    os.symlink(tmp_path / "victim", folder / "run.log")
    with pytest.raises(ConfigError):
        resume(folder)
    assert (tmp_path / "victim").read_text() == "precious"
