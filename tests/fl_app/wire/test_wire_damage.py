from __future__ import annotations

import re
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.wire import CodecError, apply_change, decode, encode, encode_change
from fl_app.wire.frame import seal
from fl_app.wire.positions import Mode
from fl_app.wire.streams import Stream, pack_streams, varint


def small_update() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    sparse = torch.randn(4, 30, generator=g) * (torch.rand(4, 30, generator=g) < 0.05)
    return {
        "sparse": torch.where(sparse == 0, 0.0, sparse),
        "bias": torch.randn(10, generator=g),
        "sign": torch.where(torch.rand(40, generator=g) < 0.5, 0.25, -0.25),
        "steps": torch.tensor([3], dtype=torch.int64),
        "half": torch.randn(20, generator=g).half().float(),
    }


def reseal(body: bytes) -> bytes:
    """Give damaged content a valid checksum, as an attacker would."""
    return body + zlib.crc32(body).to_bytes(4, "little")


def test_every_truncation_is_refused():
    update = small_update()
    blob = encode(update)
    for length in range(len(blob)):
        with pytest.raises(CodecError):
            decode(blob[:length], update)
    with pytest.raises(CodecError):
        decode(blob + b"\0", update)


def test_every_change_of_a_single_byte_is_refused():
    update = {"w": small_update()["sparse"], "b": small_update()["bias"]}
    blob = encode(update)
    for at in range(len(blob)):
        for value in range(256):
            if value == blob[at]:
                continue
            with pytest.raises(CodecError):
                decode(blob[:at] + bytes([value]) + blob[at + 1 :], update)


def test_damage_of_a_large_blob_is_refused():
    g = torch.Generator().manual_seed(0)
    update = {"w": torch.randn(100_000, generator=g) * (torch.rand(100_000, generator=g) < 0.2)}
    blob = encode(update)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(blob), 200):
        for damaged in (blob[:at], blob[:at] + bytes([blob[at] ^ 1 << at % 8]) + blob[at + 1 :]):
            with pytest.raises(CodecError):
                decode(damaged, update)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    update = {"w": torch.zeros(30), "b": torch.zeros(4)}
    prologue = encode(update)[:8]
    for blob in (data, prologue + data, reseal(prologue + data)):
        with pytest.raises(CodecError):
            decode(blob, update)


def test_damage_under_a_valid_checksum_is_refused_or_yields_an_update_of_the_right_form():
    update = small_update()
    blob = encode(update)
    rng = np.random.default_rng(0)
    refused = 0
    for at in range(8, len(blob) - 4):
        for value in [*rng.integers(0, 256, 6).tolist(), 0, 255]:
            body = bytearray(blob[:-4])
            body[at] = value
            try:
                came = decode(reseal(bytes(body)), update)
            except CodecError:
                refused += 1
            else:
                assert {k: (v.shape, v.dtype) for k, v in came.items()} == {
                    k: (v.shape, v.dtype) for k, v in update.items()
                }
    assert refused > 100


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(list(Stream)), st.binary(min_size=1, max_size=60), max_size=8),
    st.sampled_from(
        [b"", *(bytes([mode << 4, 1, 50]) for mode in Mode), *(bytes([0x50, 1, 50, mode]) for mode in Mode)]
    ),
)
def test_arbitrary_streams_in_a_valid_frame_raise_nothing_but_codec_error(streams, head):
    # heads that describe the tensor rightly let the arbitrary bytes reach positions and values
    like = {"w": torch.zeros(50)}
    streams[Stream.HEADER] = head + streams.get(Stream.HEADER, b"\0")
    pieces = [(stream, np.frombuffer(data, np.uint8)) for stream, data in streams.items()]
    try:
        came = decode(seal("update", like.keys(), pack_streams(pieces), []), like)
    except CodecError:
        return
    assert came["w"].shape == (50,)


def frame_that_declares(size: int) -> bytes:
    """A zstd header (without its magic) with an eight-byte content size, and a block that is missing."""
    return bytes([0b1110_0000]) + size.to_bytes(8, "little")


def with_stream(stream: Stream, body: bytes, *, squeezed: bool) -> bytes:
    table = varint(1 << stream) + varint(2 * len(body) + squeezed)
    return seal("update", ["w"], [table + body], [])


BOMB = zstandard.ZstdCompressor().compress(bytes(300_000_000))[4:]
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(300_000_000))[4:]


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (
            with_stream(Stream.HEADER, frame_that_declares(2**60), squeezed=True),
            "declares 1152921504606846976 bytes",
        ),
        (with_stream(Stream.PLANE_0, BOMB, squeezed=True), "declares 300000000 bytes, expected 1 to "),
        (with_stream(Stream.PLANE_0, UNSIZED, squeezed=True), "declares -1 bytes"),
        (with_stream(Stream.GAPS, bytes([0x20, 50]) + b"\x01\0\0", squeezed=True), "does not decompress"),
        (
            with_stream(Stream.PLANE_3, bytes(50_000), squeezed=False),
            "declares 50000 bytes, expected 1 to 4396",
        ),
        (with_stream(Stream.HEADER, b"", squeezed=False), "present but empty"),
        (with_stream(Stream.HEADER, b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f", squeezed=False), "got "),
        (
            with_stream(Stream.HEADER, b"\x00" + b"\xff" * 12, squeezed=False),
            "integer in the header is too long",
        ),
        (with_stream(Stream.HEADER, b"\x30\x01\x32\xff\xff\xff\xff\x7f", squeezed=False), "for 50 entries"),
        (with_stream(Stream.HEADER, b"\x70\x01\x32", squeezed=False), "position mode 7"),
        (with_stream(Stream.HEADER, b"\x20\x01\x32", squeezed=False), "BITMAPS has 0 bytes left, expected 7"),
        (with_stream(Stream.HEADER, b"\x10\x01\x32\x01\x00", squeezed=False), "carrier 1 is not possible"),
        (with_stream(Stream.HEADER, b"\x10\x01\x32\x00\x10", squeezed=False), "packed planes 0x10"),
        (with_stream(Stream.HEADER, b"\x10\x01\x32\x00\x01\x09\x00", squeezed=False), "packing 9 is unknown"),
        (with_stream(Stream.HEADER, b"\x00\x01\x32\x00", squeezed=False), "1 bytes too many"),
        (with_stream(Stream.HEADER, b"\x50\x01\x32", squeezed=False), "joined float32: the header ends"),
        (with_stream(Stream.HEADER, b"\x50\x01\x32\x05", squeezed=False), "cannot be joined again"),
        (with_stream(Stream.HEADER, b"\x50\x01\x32\x08", squeezed=False), "position mode 8"),
        (with_stream(Stream.HEADER, b"\x50\x01\x32\x01\x00\x00", squeezed=False), "PLANE_0 has 0 bytes left"),
        (with_stream(Stream.HEADER, b"\x80\x01\x32", squeezed=False), "got entries at known positions only"),
        (seal("update", ["w"], [b"\xff\xff\xff\x7f"], []), "unknown streams"),
        (seal("update", ["w"], [varint(1) + varint(2**40)], []), "do not add up"),
    ],
)
def test_forged_sizes_are_refused_with_bounded_memory(blob, message):
    like = {"w": torch.zeros(50)}
    tracemalloc.start()
    with pytest.raises(CodecError, match=re.escape(message)):
        decode(blob, like)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_table_index_beyond_the_table_is_refused():
    like = {"w": torch.zeros(50)}
    header = np.frombuffer(b"\x10\x01\x32\x05\x01\x00", np.uint8)  # dense, table of two, one plain plane
    pieces = [
        (Stream.HEADER, header),
        (Stream.TABLES, np.zeros(8, np.uint8)),
        (Stream.PLANE_0, np.full(50, 2, np.uint8)),
    ]
    with pytest.raises(CodecError, match="tensor 'w': index 2 into a table of 2 values"):
        decode(seal("update", like.keys(), pack_streams(pieces), []), like)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"w": torch.zeros(2, 3)}, r"of other names, expected 1: w"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(4)}, r"tensor 'b': expected shape \(4,\), got \(3,\)"),
        ({"a": torch.zeros(3, 2), "b": torch.zeros(3)}, r"tensor 'a': expected shape \(3, 2\), got \(2, 3\)"),
        ({"a": torch.zeros(6), "b": torch.zeros(3)}, r"tensor 'a': expected shape \(6,\), got one of 2 dim"),
        ({"a": torch.zeros(2, 3).double(), "b": torch.zeros(3)}, "tensor 'a': expected float64, got float32"),
    ],
)
def test_a_blob_of_another_model_is_refused_by_tensor(like, message):
    blob = encode({"a": torch.ones(2, 3), "b": torch.ones(3)})
    with pytest.raises(CodecError, match=message):
        decode(blob, like)


def test_an_unknown_version_is_named_beside_those_that_can_be_read():
    blob = bytearray(encode({"w": torch.ones(3)}))
    blob[2] = 9
    with pytest.raises(CodecError, match="has version 9, this side reads version 1"):
        decode(reseal(bytes(blob[:-4])), {"w": torch.ones(3)})


def test_an_update_is_no_change_and_a_change_is_no_update():
    w = {"w": torch.randn(10)}
    with pytest.raises(CodecError, match="expected a blob of kind change, got one of kind update"):
        apply_change(w, encode(w))
    with pytest.raises(CodecError, match="expected a blob of kind update, got one of kind change"):
        decode(encode_change(w, w), w)


@pytest.mark.parametrize("blob", [None, 7, "FW", [1, 2]])
def test_what_is_not_bytes_is_refused(blob):
    with pytest.raises(CodecError, match="expected bytes"):
        decode(blob, {"w": torch.zeros(2)})


def test_bytes_in_another_container_are_read():
    update = {"w": torch.randn(9)}
    blob = encode(update)
    for other in (bytearray(blob), memoryview(blob), memoryview(blob + blob)[: len(blob)]):
        assert torch.equal(decode(other, update)["w"], update["w"])


def test_a_blob_read_with_other_known_positions_is_refused():
    update = {"w": torch.tensor([1.0, 0.0, 2.0, 0.0])}
    mask = {"w": torch.tensor([True, False, True, False])}
    other = {"w": torch.tensor([True, True, False, False])}  # as many, elsewhere
    for blob, within in ((encode(update, within=mask), other), (encode(update, within=mask), None)):
        with pytest.raises(CodecError, match="other known positions"):
            decode(blob, update, within=within)
    with pytest.raises(CodecError, match="other known positions"):
        decode(encode(update), update, within=mask)


def test_a_change_applied_to_other_weights_is_refused():
    old, new = {"w": torch.randn(50)}, {"w": torch.randn(50)}
    with pytest.raises(CodecError, match="other old weights"):
        apply_change({"w": old["w"] + 1}, encode_change(new, old))


def test_damage_of_a_change_is_refused():
    old, new = {"w": torch.randn(20)}, {"w": torch.randn(20)}
    blob = encode_change(new, old)
    for at in range(len(blob)):
        for damaged in (blob[:at], blob[:at] + bytes([blob[at] ^ 0x40]) + blob[at + 1 :]):
            with pytest.raises(CodecError):
                apply_change(old, damaged)
