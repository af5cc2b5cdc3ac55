import hashlib
import pickle
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from attacks.metrics import lpips_sdist
from attacks.metrics.lpips_sdist import Checkpoint, as_torch, from_sdist, read_checkpoint


def tiny_tree() -> dict:
    kernel = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    return {
        "Tiny_0": {"Conv_0": {"kernel": kernel, "bias": np.ones(5, np.float32)}},
        "NetLinLayer_0": {"Conv_0": {"kernel": np.ones((1, 1, 5, 1), np.float32)}},
    }


def old_style_pickle(tree: dict) -> bytes:
    # numpy 2 writes another module name than the checkpoints, which are older
    return pickle.dumps(tree, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


@pytest.fixture
def tiny_source(tmp_path, monkeypatch):
    """An index with a package of our own making in place of the pinned one; its set-up would leave a mark."""
    page = tmp_path / "index" / "tiny"
    page.mkdir(parents=True)
    archive = page / "tiny-0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        (tmp_path / "tiny.ckpt").write_bytes(old_style_pickle(tiny_tree()))
        tar.add(tmp_path / "tiny.ckpt", arcname="tiny-0.1/tiny/weights/tiny.ckpt")
        (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
        tar.add(tmp_path / "setup.py", arcname="tiny-0.1/setup.py")
    (page / "index.html").write_text('<a href="tiny-0.1.tar.gz#sha256=0">tiny-0.1.tar.gz</a>')
    monkeypatch.setitem(lpips_sdist.CHECKPOINTS, "tiny", Checkpoint("tiny.ckpt", "Tiny_0", (7,)))
    monkeypatch.setattr(lpips_sdist, "SDIST_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(lpips_sdist, "ARCHIVE", archive.name)
    monkeypatch.setattr(lpips_sdist, "_indexes", lambda: [(tmp_path / "index").as_uri()])
    return archive


def test_arrays_come_out_of_a_checkpoint():
    tree = read_checkpoint(old_style_pickle(tiny_tree()))
    np.testing.assert_array_equal(
        tree["Tiny_0"]["Conv_0"]["kernel"], tiny_tree()["Tiny_0"]["Conv_0"]["kernel"]
    )


@pytest.mark.parametrize("content", [Harmful(), {"a": Path("x")}, [np.float64(1.0)]])
def test_a_checkpoint_that_asks_for_anything_else_is_refused(content):
    with pytest.raises(pickle.UnpicklingError, match="asks for"):
        read_checkpoint(pickle.dumps(content))


def test_kernels_change_their_layout(tiny_source):
    weights = as_torch(tiny_tree(), "tiny")
    kernel = tiny_tree()["Tiny_0"]["Conv_0"]["kernel"]
    assert weights["features.7.weight"].shape == (5, 4, 2, 3)
    assert weights["features.7.weight"][4, 3, 1, 2] == kernel[1, 2, 3, 4]
    assert weights["lin0.weight"].shape == (1, 5, 1, 1)


def test_the_archive_is_read_and_none_of_its_code_runs(tiny_source, tmp_path):
    weights = from_sdist("tiny")
    assert set(weights) == {"features.7.weight", "features.7.bias", "lin0.weight"}
    assert not (tmp_path / "mark").exists()


def test_an_altered_archive_is_refused(tiny_source):
    tiny_source.write_bytes(tiny_source.read_bytes() + b"!")
    with pytest.raises(OSError, match="checksum"):
        from_sdist("tiny")


def test_the_indexes_are_those_of_pip(monkeypatch):
    said = {
        "config": "global.index-url='https://a.example/simple'\n:env:.extra-index-url='file:///b file:///c'\n",
        "download": "-i, --index-url <url>  (default https://z.example/simple).",
    }
    monkeypatch.setattr(lpips_sdist, "_pip", lambda *words: said[words[0]])
    assert lpips_sdist._indexes() == ["https://a.example/simple", "file:///b", "file:///c"]
    said["config"] = ""
    assert lpips_sdist._indexes() == ["https://z.example/simple"]


def test_an_archive_is_fetched_over_tls_or_from_a_disk_alone():
    with pytest.raises(OSError, match="https"):
        lpips_sdist._fetch("http://a.example/x")


def test_what_pip_says_is_passed_on(monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "no network")
    monkeypatch.setattr(lpips_sdist.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OSError, match="no network"):
        from_sdist("alex")


def test_pip_does_not_get_forever(monkeypatch):
    def never(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(lpips_sdist.subprocess, "run", never)
    with pytest.raises(OSError, match="within 600 s"):
        from_sdist("alex")
