"""Tensors from files of other frameworks."""

import zipfile
from io import BytesIO

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fl_app.storage.tensor_files import read_tensors

TENSORS = {"a.weight": torch.randn(3, 2), "a.bias": torch.arange(3.0)}


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors", ".npz"])
def test_named_tensors_come_back_by_name(tmp_path, suffix):
    path = tmp_path / f"update{suffix}"
    if suffix == ".safetensors":
        save_file(TENSORS, path)
    elif suffix == ".npz":
        np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in TENSORS.items()})
    else:
        torch.save(TENSORS, path)
    found = read_tensors(str(path))
    assert list(found) == (sorted(TENSORS) if suffix == ".safetensors" else list(TENSORS))
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("suffix", [".pt", ".npz"])
def test_tensors_without_names_keep_their_order(tmp_path, suffix):
    path, many = tmp_path / f"update{suffix}", [torch.full((2,), float(i)) for i in range(12)]
    if suffix == ".npz":
        np.savez(path, *(tensor.numpy() for tensor in many))
    else:
        torch.save(many, path)
    assert [float(tensor[0]) for tensor in read_tensors(path)] == list(range(12))


def objects_in_npz() -> bytes:
    array, archive = BytesIO(), BytesIO()
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as whole:
        whole.writestr("a.npy", array.getvalue())
    return archive.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pt", nn.Linear(1, 1)),
        ("a.pt", {"a": 1}),
        ("a.pt", {1: torch.ones(1)}),
        ("a.pt", torch.ones(1)),
        ("a.npz", objects_in_npz()),
        ("a.npz", b""),
        ("a.safetensors", b"123456789"),
        ("a.bin", b""),
        ("missing.pt", None),
    ],
)
def test_files_of_something_else_are_refused_by_name(tmp_path, name, content):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_tensors(path)
