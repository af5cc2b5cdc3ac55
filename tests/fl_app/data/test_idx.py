"""The IDX reader against bytes written by hand."""

from __future__ import annotations

import gzip

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data.idx import read_idx

TWO_BY_THREE = bytes.fromhex("00000802 00000002 00000003 010203 0405ff")


@pytest.mark.parametrize("name", ["a-idx2-ubyte", "a-idx2-ubyte.gz"])
def test_reads_sizes_and_bytes_in_order(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(TWO_BY_THREE) if name.endswith(".gz") else TWO_BY_THREE)
    got = read_idx(path)
    assert got.dtype == torch.uint8
    assert got.tolist() == [[1, 2, 3], [4, 5, 255]]
    got[0, 0] = 9  # a tensor of its own, not a read-only view


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin like an IDX file"),
        (b"PK\x03\x04rest", "does not begin like an IDX file: 50 4b 03 04"),
        (bytes.fromhex("00000d01 00000001 00000000"), "must hold bytes .type 0x08., got type 0x0d"),
        (bytes.fromhex("00000802 00000002"), "ends within its header"),
        (TWO_BY_THREE[:-1], r"must hold 6 bytes for shape \(2, 3\), got 5"),
        (TWO_BY_THREE + b"\0", r"must hold 6 bytes for shape \(2, 3\), got more"),
    ],
)
def test_refuses_what_is_not_a_whole_file_of_bytes_and_names_it(tmp_path, content, message):
    path = tmp_path / "broken-ubyte"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"read_idx: {path} {message}"):
        read_idx(path)


@pytest.mark.parametrize("content", [b"plain bytes", gzip.compress(TWO_BY_THREE)[:-9]], ids=["plain", "cut"])
def test_refuses_a_broken_gzip_file_and_names_it(tmp_path, content):
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path} is not a whole gzip file"):
        read_idx(path)


@given(st.binary(max_size=30))
def test_any_bytes_give_a_tensor_of_their_length_or_a_value_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("idx") / "any"
    path.write_bytes(b"\0\0\x08" + content)
    try:
        got = read_idx(path)
    except ValueError:
        return
    assert got.numel() == len(content) - 1 - 4 * content[0]
