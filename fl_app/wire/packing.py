"""Patterns of named tensors as one blob: each tensor chooses its form, all share the streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fl_app.wire.errors import CodecError
from fl_app.wire.frame import Kind, seal, unseal
from fl_app.wire.patterns import FORMATS, Array, Family, Format
from fl_app.wire.positions import Mode, plan_positions, read_positions
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, pack_streams, varint
from fl_app.wire.values import plan_values, read_values


class Entries(NamedTuple):
    """What both ends know of a tensor: its format, its shape, and how many entries are written."""

    format: Format
    shape: tuple[int, ...]
    written: int
    """Fewer than the shape has if only known positions are written."""
    within: bool

    def family(self, kind: Kind) -> Family:
        """Return how to treat the patterns; those of a change are no numbers."""
        return "unsigned" if kind == "change" else self.format.family


def pack(
    kind: Kind, entries: Mapping[str, Entries], patterns: Mapping[str, Array], shared: Iterable[Array]
) -> bytes:
    """Write the patterns of all tensors into one blob."""
    header, pieces = bytearray(), []
    for name in sorted(entries):
        plan = _plan_tensor(entries[name], patterns[name], kind)
        header += plan.header
        pieces += plan.pieces
    pieces.append((Stream.HEADER, np.frombuffer(bytes(header), np.uint8)))
    return seal(kind, entries.keys(), pack_streams(pieces), shared)


def unpack(
    kind: Kind, blob: bytes, entries: Mapping[str, Entries], shared: Iterable[Array]
) -> dict[str, Array]:
    """Return the patterns of all tensors, or raise CodecError; the inverse of `pack`."""
    content = unseal(kind, entries.keys(), blob, shared)
    # what any choice of the encoder could need; nothing larger is ever allocated
    limit = sum(e.written * (e.format.words.itemsize + 2) + 4096 for e in entries.values())
    streams = StreamReader(content, limit)
    header = HeaderReader(memoryview(streams.rest(Stream.HEADER)))  # type: ignore[arg-type]
    patterns = {}
    for name in sorted(entries):
        try:
            patterns[name] = _read_tensor(entries[name], kind, header, streams)
        except CodecError as error:
            raise CodecError(f"wire: tensor {name!r}: {str(error).removeprefix('wire: ')}") from error
    header.finish()
    streams.finish()
    return patterns


def _plan_tensor(entries: Entries, patterns: Array, kind: Kind) -> Plan:
    mode, plans = _plan_entries(patterns, entries.family(kind))
    first = entries.format.code | mode << 4 | entries.within << 7
    shape = b"".join(map(varint, (len(entries.shape), *entries.shape)))
    header = bytes([first]) + shape + b"".join(plan.header for plan in plans)
    return Plan(header, [piece for plan in plans for piece in plan.pieces])


def _plan_entries(patterns: Array, family: Family) -> tuple[Mode, list[Plan]]:
    nonzero = patterns != 0
    k = np.count_nonzero(nonzero)
    if k == 0:
        return Mode.NONE, []
    if k == patterns.size:
        return Mode.DENSE, [plan_values(patterns, family)]
    # zeros never travel as values: a zero among values costs at best the entropy of its position
    where = np.flatnonzero(nonzero)
    mode, positions = plan_positions(nonzero, where)
    return mode, [positions, plan_values(patterns[where], family)]


def _read_tensor(entries: Entries, kind: Kind, header: HeaderReader, streams: StreamReader) -> Array:
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
    where = read_positions(Mode(mode), entries.written, header, streams)
    count = entries.written if where is None else where.size
    values = read_values(count, words.itemsize, entries.family(kind), header, streams) if count else None
    if where is None and values is not None:
        return values
    patterns = np.zeros(entries.written, words)
    if where is not None and values is not None:
        patterns[where] = values
    return patterns
