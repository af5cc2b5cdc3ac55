"""Packing of named tensors into one blob: each tensor chooses its form, all share the streams.

The choice costs dozens of numpy calls, however short the tensor. Small tensors of ordinary floats
would all choose the same form, so they are concatenated and written as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from fl_app.wire.drawn import SEED_BYTES, Drawn, drawn_positions
from fl_app.wire.errors import CodecError
from fl_app.wire.frame import Kind, seal, unseal
from fl_app.wire.patterns import FORMATS, Array, Family, Format
from fl_app.wire.positions import Mode, plan_positions, read_positions
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, pack_streams, varint
from fl_app.wire.values import is_ordinary, plan_values, read_values

_LARGEST_JOINED = 1 << 14
_NOTHING = Plan(b"", [])


class Entries(NamedTuple):
    """Properties of a tensor known to both ends: its format, its shape, and the number of written entries."""

    format: Format
    shape: tuple[int, ...]
    written: int
    """Number of written entries; smaller than the shape's if only known positions are written."""
    within: bool

    def family(self, kind: Kind) -> Family:
        """Return the kind of numbers that the patterns are; those of a change are not numbers."""
        return "unsigned" if kind == "change" else self.format.family


def pack(
    kind: Kind,
    entries: Mapping[str, Entries],
    patterns: Mapping[str, Array],
    shared: Iterable[Array],
    drawn: Drawn | None = None,
) -> bytes:
    """Write the patterns of all tensors into one blob; the first ``drawn`` tensor is led by the seed."""
    at = {} if drawn is None else _find_drawn(entries, patterns, drawn)
    groups = _find_groups(kind, entries, {name: p for name, p in patterns.items() if name not in at})
    joined = {name for names in groups.values() for name in names}
    header, pieces = bytearray(), []
    seed = b"" if drawn is None else drawn.seed.to_bytes(SEED_BYTES, "big")
    for name in sorted(entries):
        mode, plan, lead = Mode.JOINED, _NOTHING, b""
        if name in at:
            mode, lead, seed = Mode.DRAWN, seed + varint(at[name].size), b""
            plan = plan_values(patterns[name][at[name]], entries[name].family(kind))
        elif name not in joined:
            mode, plan = _plan_entries(patterns[name], entries[name].family(kind))
        header.append(entries[name].format.code | mode << 4 | entries[name].within << 7)
        header += _shape_bytes(entries[name].shape) + lead + plan.header
        pieces += plan.pieces
    for names in groups.values():
        whole = np.concatenate([patterns[name] for name in names])
        mode, plan = _plan_entries(whole, entries[names[0]].family(kind))
        header += bytes([mode]) + plan.header
        pieces += plan.pieces
    pieces.append((Stream.HEADER, np.frombuffer(bytes(header), np.uint8)))
    return seal(kind, entries.keys(), pack_streams(pieces), shared)


def unpack(
    kind: Kind, blob: bytes, entries: Mapping[str, Entries], shared: Iterable[Array]
) -> dict[str, Array]:
    """Return the patterns of all tensors, or raise CodecError; the inverse of `pack`."""
    content = unseal(kind, entries.keys(), blob, shared)
    # upper bound over all choices of the encoder; nothing larger is ever allocated
    limit = sum(e.written * (e.format.words.itemsize + 2) + 4096 for e in entries.values())
    streams = StreamReader(content, limit)
    header = HeaderReader(streams.rest(Stream.HEADER).tobytes())
    patterns: dict[str, Array] = {}
    groups: dict[int, list[str]] = {}
    seed: int | None = None
    for name in sorted(entries):
        try:
            mode = _read_description(entries[name], header)
            if mode is Mode.JOINED:
                groups.setdefault(entries[name].format.code, []).append(name)
            elif mode is Mode.DRAWN:
                if seed is None:
                    seed = int.from_bytes(bytes(header.byte() for _ in range(SEED_BYTES)), "big")
                patterns[name] = _read_drawn(name, entries[name], kind, seed, header, streams)
            else:
                patterns[name] = _read_entries(mode, entries[name], kind, header, streams)
        except CodecError as error:
            raise CodecError(f"wire: tensor {name!r}: {str(error).removeprefix('wire: ')}") from error
    for _, names in sorted(groups.items()):
        patterns |= _read_group(kind, {name: entries[name] for name in names}, header, streams)
    header.finish()
    streams.finish()
    return patterns


def _find_drawn(
    entries: Mapping[str, Entries], patterns: Mapping[str, Array], drawn: Drawn
) -> dict[str, Array]:
    """Return the positions of the tensors that are non-zero exactly where they were drawn, in part."""
    found = {}
    for name, count in drawn.counts.items():
        n = patterns[name].size
        if 0 < count < n and not entries[name].within:
            where = drawn.positions(name, n)
            if np.count_nonzero(patterns[name]) == count and patterns[name][where].all():
                found[name] = where
    return found


def _read_drawn(
    name: str, entries: Entries, kind: Kind, seed: int, header: HeaderReader, streams: StreamReader
) -> Array:
    count = header.varint()
    if entries.within or not 0 < count < entries.written:
        raise CodecError(f"wire: {count} drawn positions of {entries.written} entries")
    values = read_values(count, entries.format.words.itemsize, entries.family(kind), header, streams)
    patterns = np.zeros(entries.written, entries.format.words)
    patterns[drawn_positions(seed, name, entries.written, count)] = values
    return patterns


def _find_groups(
    kind: Kind, entries: Mapping[str, Entries], patterns: Mapping[str, Array]
) -> dict[int, list[str]]:
    """Return the names of small ordinary tensors by format code, both sorted."""
    small: dict[int, list[str]] = {}
    for name in sorted(patterns):
        fmt, size = entries[name].format, patterns[name].size
        if fmt.family == "float" and 0 < size <= _LARGEST_JOINED:
            small.setdefault(fmt.code, []).append(name)
    groups = {}
    for code, names in sorted(small.items()):
        whole = np.concatenate([patterns[name] for name in names])
        where = np.flatnonzero(whole != 0)
        values, family = whole[where], entries[names[0]].family(kind)
        ends = np.searchsorted(where, np.cumsum([patterns[name].size for name in names])).tolist()
        parts = zip(names, [0, *ends], ends, strict=False)
        ordinary = [name for name, a, b in parts if a < b and is_ordinary(values[a:b], family)]
        if len(ordinary) > 1:
            groups[code] = ordinary
    return groups


def _plan_entries(patterns: Array, family: Family) -> tuple[Mode, Plan]:
    nonzero = patterns != 0
    where = np.flatnonzero(nonzero)
    if not where.size:
        return Mode.NONE, _NOTHING
    if where.size == patterns.size:
        return Mode.DENSE, plan_values(patterns, family)
    # zeros are never sent as values: a zero among values costs at least the entropy of its position
    mode, positions = plan_positions(nonzero, where)
    values = plan_values(patterns[where], family)
    return mode, Plan(positions.header + values.header, positions.pieces + values.pieces)


@lru_cache(maxsize=4096)
def _shape_bytes(shape: tuple[int, ...]) -> bytes:
    return b"".join(map(varint, (len(shape), *shape)))


def _read_description(entries: Entries, header: HeaderReader) -> Mode:
    first = header.byte()
    code, within = first & 15, bool(first >> 7)
    if code != entries.format.code:
        came = next((str(f) for f in FORMATS if f.code == code), f"dtype code {code}")
        raise CodecError(f"wire: expected {entries.format}, got {came}")
    if not header.skip(_shape_bytes(entries.shape)):
        ndim = header.varint()
        if ndim != len(entries.shape):
            raise CodecError(f"wire: expected shape {entries.shape}, got one of {ndim} dimensions")
        shape = tuple(header.varint() for _ in range(ndim))
        raise CodecError(f"wire: expected shape {entries.shape}, got {shape}")
    if within != entries.within:
        ends = ("all positions", "known positions only")
        raise CodecError(f"wire: expected entries at {ends[entries.within]}, got entries at {ends[within]}")
    return _mode(first >> 4 & 7)


def _mode(number: int) -> Mode:
    if number >= len(Mode):
        raise CodecError(f"wire: position mode {number} is unknown, expected one of {sorted(map(int, Mode))}")
    return Mode(number)


def _read_group(
    kind: Kind, members: Mapping[str, Entries], header: HeaderReader, streams: StreamReader
) -> dict[str, Array]:
    """Read the joined tensors of one format."""
    ends = list(accumulate(e.written for e in members.values()))
    whole = next(iter(members.values()))._replace(written=ends[-1])
    try:
        mode = _mode(header.byte())
        if mode in (Mode.JOINED, Mode.DRAWN):
            raise CodecError("wire: what is joined cannot be joined again, nor drawn")
        patterns = _read_entries(mode, whole, kind, header, streams)
    except CodecError as error:
        raise CodecError(f"wire: joined {whole.format}: {str(error).removeprefix('wire: ')}") from error
    # copies: each tensor owns its memory
    return {name: patterns[a:b].copy() for name, a, b in zip(members, [0, *ends], ends, strict=False)}


def _read_entries(
    mode: Mode, entries: Entries, kind: Kind, header: HeaderReader, streams: StreamReader
) -> Array:
    words = entries.format.words
    where = read_positions(mode, entries.written, header, streams)
    count = entries.written if where is None else where.size
    values = read_values(count, words.itemsize, entries.family(kind), header, streams) if count else None
    if where is None and values is not None:
        return values
    patterns = np.zeros(entries.written, words)
    if where is not None and values is not None:
        patterns[where] = values
    return patterns
