"""Files of values and tensors: what comes back, what is shared, and what damage does."""

import math
import stat

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.storage import tree_file as stored_tree
from fl_app.storage.tree_file import DamagedFile, read_tree, write_tree

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
keys = scalars | st.tuples(scalars, scalars)
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
tensors = [
    torch.tensor(3),
    torch.tensor(-0.0),
    torch.empty(0, 4),
    torch.tensor([math.nan, math.inf, -0.0]),
    torch.arange(15.0).reshape(3, 5).t(),
    torch.tensor([True, False]),
    *(torch.arange(5).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8)),
]
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(tree=trees)
def test_a_tree_comes_back_as_it_was(tree, tmp_path):
    write_tree(tmp_path / "file", tree)
    found = read_tree(tmp_path / "file")
    assert found == tree
    assert repr(found) == repr(tree)


@pytest.mark.parametrize("tensor", tensors, ids=lambda tensor: f"{tensor.dtype}-{list(tensor.shape)}")
def test_tensors_come_back_bit_for_bit(tensor, tmp_path):
    write_tree(tmp_path / "file", {"a": [tensor, b"x"]})
    found, blob = read_tree(tmp_path / "file")["a"]
    assert (found.dtype, found.shape, blob) == (tensor.dtype, tensor.shape, b"x")
    raw = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (found, tensor)]
    assert raw[0] == raw[1]


def test_what_is_shared_is_written_once_and_shared_again(tmp_path):
    shared = torch.randn(10_000)
    write_tree(tmp_path / "file", [shared, {"b": shared}])
    assert (tmp_path / "file").stat().st_size < 1.1 * 40_000
    first, rest = read_tree(tmp_path / "file")
    assert first is rest["b"]


def test_only_its_owner_can_read_it(tmp_path):
    write_tree(tmp_path / "file", 1)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@quick
@given(data=st.data())
def test_any_flipped_bit_and_any_truncation_is_noticed(data, tmp_path):
    path = tmp_path / "file"
    write_tree(path, {"weights": torch.arange(20.0), "name": "x", "blob": b"123"})
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        damaged = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(DamagedFile):
        read_tree(path)


def test_more_than_the_limit_is_neither_read_nor_written(tmp_path):
    path = tmp_path / "file"
    write_tree(path, b"x" * 1000)
    with pytest.raises(DamagedFile, match="at most 500 bytes"):
        read_tree(path, limit=500)
    with pytest.raises(OSError, match="500 are allowed"):
        write_tree(path, b"y" * 1000, limit=500)
    assert read_tree(path) == b"x" * 1000


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file_and_nothing_else(call, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_tree(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_tree.os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_tree(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert read_tree(path) == "old"


def test_what_is_no_value_is_refused(tmp_path):
    with pytest.raises(TypeError, match="Path cannot be stored"):
        write_tree(tmp_path / "file", {"a": tmp_path})
