"""Shared byte streams: data of one kind from all tensors is stored together and entropy-coded once.

A zstd frame for every plane of every tensor would cost more than a bias of ten
entries; one frame per stream costs its dozen bytes once per blob. zstd forms
a Huffman table for every 128 KiB, so large tensors keep statistics of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import zstandard

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array


class Stream(IntEnum):
    """Content of a stream; the number is its place in the blob."""

    HEADER = 0
    BITMAPS = 1
    GAPS = 2
    REMAINDERS = 3
    TABLES = 4
    BITS = 5
    CRUMBS = 6
    NIBBLES = 7
    PLANE_0 = 8
    """Most significant byte of the values; planes 1 to 7 follow."""
    PLANE_1 = 9
    PLANE_2 = 10
    PLANE_3 = 11
    PLANE_4 = 12
    PLANE_5 = 13
    PLANE_6 = 14
    PLANE_7 = 15


class Plan(NamedTuple):
    """Written form: the part in the header and the parts in the streams."""

    header: bytes
    pieces: list[tuple[Stream, Array]]


_MAGIC = b"\x28\xb5\x2f\xfd"  # opens every zstd frame, so it need not travel
# Huffman coding with next to no match search: planes have statistics but no phrases,
# and the few chance matches that a full search finds cost more than they save.
_STATISTICS = zstandard.ZstdCompressionParameters.from_level(
    1, strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6, target_length=0
)
_PHRASES = zstandard.ZstdCompressionParameters.from_level(3)  # for rows and columns that repeat
_SAMPLE = 1 << 17
_SAMPLE_BLOCKS = 8
_SMALLEST_FRAME = 12  # a shorter stream is shorter than any frame
_WORTHWHILE = 0.995  # below this ratio a sample justifies the compressor's time


def pack_streams(pieces: Iterable[tuple[Stream, Array]]) -> list[bytes | memoryview]:
    """Join the pieces of each stream, squeeze each stream, and return them after a table of their lengths."""
    parts: dict[Stream, list[Array]] = {}
    for stream, piece in pieces:
        if piece.size:
            parts.setdefault(stream, []).append(piece)
    table = bytearray()
    bodies: list[bytes | memoryview] = []
    for stream in sorted(parts):
        squeezed, body = _squeeze(np.concatenate(parts[stream]))
        table += varint(2 * len(body) + squeezed)
        bodies.append(body)
    present = sum(1 << stream for stream in parts)
    return [varint(present) + table, *bodies]


class StreamReader:
    """The streams of a blob, taken piece by piece; refuses to hold more than ``limit`` bytes."""

    def __init__(self, packed: memoryview, limit: int) -> None:
        table = HeaderReader(packed)
        present = table.varint()
        if present >> len(Stream):
            raise CodecError(f"wire: unknown streams are present (mask {present:#x})")
        entries = [(stream, table.varint()) for stream in Stream if present >> stream & 1]
        at = table.at
        if sum(entry >> 1 for _, entry in entries) != len(packed) - at:
            raise CodecError("wire: the lengths of the streams do not add up to the length of the blob")
        self._data: dict[Stream, Array] = {}
        self._at = dict.fromkeys(Stream, 0)
        for stream, entry in entries:
            body = packed[at : at + (entry >> 1)]
            if not body:
                raise CodecError(f"wire: stream {stream.name} is present but empty")
            data = _unsqueeze(stream, body, limit) if entry & 1 else np.frombuffer(body, np.uint8)
            limit -= data.size
            if limit < 0:
                raise _too_large(stream, data.size, limit + data.size)
            self._data[stream] = data
            at += len(body)

    def take(self, stream: Stream, count: int) -> Array:
        """Return the next ``count`` bytes of a stream."""
        start = self._at[stream]
        data = self._data.get(stream, _NOTHING)
        if count > data.size - start:
            raise CodecError(
                f"wire: stream {stream.name} has {data.size - start} bytes left, expected {count}"
            )
        self._at[stream] = start + count
        return data[start : start + count]

    def rest(self, stream: Stream) -> Array:
        """Return the unread rest of a stream."""
        return self.take(stream, self._data.get(stream, _NOTHING).size - self._at[stream])

    def finish(self) -> None:
        """Refuse a blob with unread data."""
        for stream, data in self._data.items():
            if self._at[stream] != data.size:
                raise CodecError(
                    f"wire: stream {stream.name} has {data.size - self._at[stream]} bytes too many"
                )


class HeaderReader:
    """Bytes and variable-length integers, one after the other."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = data
        self.at = 0

    def byte(self) -> int:
        """Return the next byte."""
        if self.at >= len(self._data):
            raise CodecError("wire: the header ends too early")
        self.at += 1
        return self._data[self.at - 1]

    def varint(self) -> int:
        """Return the next variable-length integer, less than 2**63."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise CodecError("wire: an integer in the header is too long")

    def skip(self, expected: bytes) -> bool:
        """Skip ``expected`` if it comes next; return whether it did."""
        found = self._data[self.at : self.at + len(expected)] == expected
        self.at += len(expected) * found
        return found

    def finish(self) -> None:
        """Refuse trailing bytes."""
        if self.at != len(self._data):
            raise CodecError(f"wire: the header has {len(self._data) - self.at} bytes too many")


def varint(value: int) -> bytes:
    """Write a non-negative integer seven bits at a time, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def coded_size(data: Array) -> float:
    """Estimate the bytes that ``data`` will take in a stream it shares with similar data."""
    if data.size < 1024:
        return order0_size(data, data.size)
    blocks = _blocks(data)
    size = min(sum(len(c.compress(block)) for block in blocks) for c in _ZSTD.compressors())
    return size * (data.size / sum(map(len, blocks)))


def order0_size(sample: Array, count: int) -> float:
    """Estimate the size of ``count`` Huffman-coded bytes: their entropy, and a byte of table per symbol."""
    counts = np.bincount(sample, minlength=256)
    counts = counts[counts > 0]
    entropy = float(-(counts * np.log2(counts / max(sample.size, 1))).sum()) / max(sample.size, 1)
    return min(count, count * entropy / 8 + counts.size)


class _Zstd(threading.local):
    """Compressors and a decompressor of this thread; creating one takes longer than coding a small stream."""

    def __init__(self) -> None:
        self.statistics = zstandard.ZstdCompressor(compression_params=_STATISTICS)
        self.phrases = zstandard.ZstdCompressor(compression_params=_PHRASES)
        self.inverse = zstandard.ZstdDecompressor()

    def compressors(self) -> tuple[zstandard.ZstdCompressor, zstandard.ZstdCompressor]:
        return self.statistics, self.phrases


_ZSTD = _Zstd()
_NOTHING: Array = np.zeros(0, np.uint8)


def _squeeze(data: Array) -> tuple[bool, bytes | memoryview]:
    """Return ``data`` as a zstd frame if that is smaller, else unchanged."""
    raw = memoryview(data)  # type: ignore[arg-type]
    if len(raw) < _SMALLEST_FRAME:
        return False, raw
    if len(raw) <= _SAMPLE:
        frame = min((c.compress(raw) for c in _ZSTD.compressors()), key=len)
    else:
        blocks = _blocks(data)
        tried = [(sum(len(c.compress(block)) for block in blocks), c) for c in _ZSTD.compressors()]
        size, compressor = min(tried, key=lambda pair: pair[0])
        # most of a blob is incompressible planes (low mantissa bytes): spend no time on them
        if size > _WORTHWHILE * sum(map(len, blocks)):
            return False, raw
        frame = compressor.compress(raw)
    frame = frame[len(_MAGIC) :]
    return (True, frame) if len(frame) < len(raw) else (False, raw)


def _blocks(data: Array) -> list[bytes]:
    """Return ``data``, or evenly spaced blocks of it if it is large."""
    if data.size <= _SAMPLE:
        return [data.tobytes()]
    block = _SAMPLE // _SAMPLE_BLOCKS
    starts = [(data.size - block) * i // (_SAMPLE_BLOCKS - 1) for i in range(_SAMPLE_BLOCKS)]
    return [data[s : s + block].tobytes() for s in starts]


def _unsqueeze(stream: Stream, body: memoryview, limit: int) -> Array:
    frame = b"".join([_MAGIC, body])
    try:
        # checked first: the decompressor allocates whatever the frame declares
        declared = zstandard.frame_content_size(frame)
        if not 0 < declared <= limit:
            raise _too_large(stream, declared, limit)
        raw = _ZSTD.inverse.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"wire: stream {stream.name} does not decompress: {error}") from error
    return np.frombuffer(raw, np.uint8)


def _too_large(stream: Stream, size: int, limit: int) -> CodecError:
    return CodecError(f"wire: stream {stream.name} declares {size} bytes, expected 1 to {limit}")
