"""Blobs: patterns of named tensors in a checked frame.

A blob is ``FW``, a version, what it holds (``U`` update, ``C`` change), a checksum
of the sorted names, the streams, and a CRC-32. The CRC starts from what both ends know
already (masks, old weights): a blob read with another mask is refused, at no byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import FORMATS, Array, Family, Format
from fl_app.wire.positions import Mode, plan_positions, read_positions
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, pack_streams, varint
from fl_app.wire.values import plan_values, read_values

Content = Literal["update", "change"]

VERSION = 1
_READABLE = (1,)
_MAGIC = b"FW"
_CONTENT: dict[Content, bytes] = {"update": b"U", "change": b"C"}
_PROLOGUE = struct.Struct("<2sB1sI")
_CRC = struct.Struct("<I")


class Entries(NamedTuple):
    """What both ends know of a tensor: its format, its shape, and how many entries are written."""

    format: Format
    shape: tuple[int, ...]
    count: int
    """Fewer than the shape has if only known positions are written."""
    within: bool

    def family(self, content: Content) -> Family:
        """Return how to treat the patterns; those of a change are no numbers."""
        return "unsigned" if content == "change" else self.format.family


def pack(
    content: Content, entries: Mapping[str, Entries], patterns: Mapping[str, Array], shared: Iterable[Array]
) -> bytes:
    """Write the patterns of all tensors into one blob."""
    header, pieces = bytearray(), []
    for name in sorted(entries):
        plan = _plan_tensor(entries[name], patterns[name], content)
        header += plan.header
        pieces += plan.pieces
    pieces.append((Stream.HEADER, np.frombuffer(bytes(header), np.uint8)))
    prologue = _PROLOGUE.pack(_MAGIC, VERSION, _CONTENT[content], _names_checksum(entries))
    body = prologue + pack_streams(pieces)
    return body + _CRC.pack(zlib.crc32(body, _shared_checksum(shared)))


def unpack(
    content: Content, blob: bytes, entries: Mapping[str, Entries], shared: Iterable[Array]
) -> dict[str, Array]:
    """Return the patterns of all tensors, or raise CodecError; the inverse of `pack`."""
    body = _check_frame(content, blob, entries, shared)
    # what any choice of the encoder could need; nothing larger is ever allocated
    limit = sum(e.count * (e.format.words.itemsize + 2) + 4096 for e in entries.values())
    streams = StreamReader(body, limit)
    header = HeaderReader(memoryview(streams.rest(Stream.HEADER)))  # type: ignore[arg-type]
    patterns = {}
    for name in sorted(entries):
        try:
            patterns[name] = _read_tensor(entries[name], content, header, streams)
        except CodecError as error:
            raise CodecError(f"wire: tensor {name!r}: {str(error).removeprefix('wire: ')}") from error
    header.finish()
    streams.finish()
    return patterns


def _plan_tensor(entries: Entries, patterns: Array, content: Content) -> Plan:
    family = entries.family(content)
    nonzero = patterns != 0
    where = np.flatnonzero(nonzero)
    mode, positions = plan_positions(nonzero, where)
    values = None
    if where.size:
        values = plan_values(patterns if mode is Mode.DENSE else patterns[where], family)
        if where.size < patterns.size < 2 * where.size:
            # zero as one more symbol can be cheaper than positions, if symbols are few
            dense = _plan_dense(patterns, values, family)
            if dense is not None and dense.cost <= positions.cost + values.cost:
                mode, positions, values = Mode.DENSE, Plan(b"", [], 0), dense
    first = entries.format.code | mode << 4 | entries.within << 7
    shape = b"".join(map(varint, (len(entries.shape), *entries.shape)))
    plans = [positions] if values is None else [positions, values]
    header = bytes([first]) + shape + b"".join(p.header for p in plans)
    return Plan(header, [piece for p in plans for piece in p.pieces], sum(p.cost for p in plans))


def _plan_dense(patterns: Array, values: Plan, family: Family) -> Plan | None:
    short = sum(piece.size for _, piece in values.pieces) < 2 * patterns.size
    return plan_values(patterns, family) if short else None


def _names_checksum(names: Iterable[str]) -> int:
    return zlib.crc32("\0".join(sorted(names)).encode())


def _shared_checksum(shared: Iterable[Array]) -> int:
    checksum = 0
    for array in shared:
        checksum = zlib.crc32(memoryview(array).cast("B") if array.size else b"", checksum)  # type: ignore[arg-type]
    return checksum


def _check_frame(
    content: Content, blob: bytes, entries: Mapping[str, Entries], shared: Iterable[Array]
) -> memoryview:
    """Return what lies between the prologue and the checksum, if all around it is as expected."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise CodecError(f"wire: expected bytes, got {type(blob).__name__}")
    view = memoryview(blob).cast("B")
    if len(view) < _PROLOGUE.size + _CRC.size:
        raise CodecError(f"wire: expected at least {_PROLOGUE.size + _CRC.size} bytes, got {len(view)}")
    magic, version, kind, names = _PROLOGUE.unpack_from(view)
    if magic != _MAGIC:
        raise CodecError(f"wire: expected a blob that begins with {_MAGIC!r}, got {magic!r}")
    if version not in _READABLE:
        readable = ", ".join(map(str, _READABLE))
        raise CodecError(f"wire: the blob has version {version}, expected one of these: {readable}")
    if kind != _CONTENT[content]:
        known = {code: name for name, code in _CONTENT.items()}
        raise CodecError(f"wire: expected a blob with {content}, got one with {known.get(kind, kind)}")
    (checksum,) = _CRC.unpack_from(view, len(view) - _CRC.size)
    if checksum != zlib.crc32(view[: -_CRC.size], _shared_checksum(shared)):
        raise CodecError(
            "wire: the checksum does not match: the blob is damaged, or was made with"
            + (" other old weights" if content == "change" else " other known positions (within)")
        )
    if names != _names_checksum(entries):
        raise CodecError(
            f"wire: the blob is for tensors of other names, expected {len(entries)}: {_abbreviate(sorted(entries))}"
        )
    return view[_PROLOGUE.size : -_CRC.size]


def _abbreviate(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 4 else [*names[:3], "…", names[-1]])


def _read_tensor(
    entries: Entries, content: Content, header: HeaderReader, streams: StreamReader
) -> Array:
    first = header.byte()
    code, mode, within = first & 15, first >> 4 & 7, bool(first >> 7)
    if code != entries.format.code:
        came = next((str(f) for f in FORMATS if f.code == code), f"dtype code {code}")
        raise CodecError(f"wire: expected {entries.format}, got {came}")
    ndim = header.varint()
    if ndim != len(entries.shape):
        raise CodecError(f"wire: expected shape {entries.shape}, got one of {ndim} dimensions")
    shape = tuple(header.varint() for _ in range(ndim))
    if shape != entries.shape:
        raise CodecError(f"wire: expected shape {entries.shape}, got {shape}")
    if within != entries.within:
        ends = ("all positions", "known positions only")
        raise CodecError(f"wire: expected entries at {ends[entries.within]}, got entries at {ends[within]}")
    if mode not in set(Mode):
        raise CodecError(f"wire: position mode {mode} is unknown, expected one of {sorted(map(int, Mode))}")
    words = entries.format.words
    where = read_positions(Mode(mode), entries.count, header, streams)
    count = entries.count if where is None else where.size
    values = read_values(count, words.itemsize, entries.family(content), header, streams) if count else None
    if where is None and values is not None:
        return values
    patterns = np.zeros(entries.count, words)
    if where is not None and values is not None:
        patterns[where] = values
    return patterns
