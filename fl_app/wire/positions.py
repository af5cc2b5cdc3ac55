"""Where the non-zero entries of a tensor are: as a bitmap or as gaps, whichever is smaller."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, coded_size, varint


class Mode(IntEnum):
    """How a tensor's positions are written."""

    NONE = 0
    """All entries are zero."""
    DENSE = 1
    """All entries are written as values, zeros among them."""
    BITMAP = 2
    GAPS = 3
    """Distances between non-zero entries."""
    HOLES = 4
    """Distances between zero entries."""


_ESCAPE = 255
# Huffman-coded bytes of a bitmap are within 1 % of the entropy above this density; below it
# the all-zero byte becomes so likely that its shortest possible code, one bit, is too long
_DENSE_ENOUGH = 0.125


def plan_positions(nonzero: Array, where: Array) -> tuple[Mode, Plan]:
    """Choose how to write ``where``, the sorted indices of the true entries of ``nonzero``."""
    n, k = nonzero.size, where.size
    if k in (0, n):
        return (Mode.DENSE if k else Mode.NONE), Plan(b"", [], 0)
    bits = np.packbits(nonzero, bitorder="little")
    bitmap = Plan(b"", [(Stream.BITMAPS, bits)], coded_size(bits))
    if min(k, n - k) > _DENSE_ENOUGH * n:
        return Mode.BITMAP, bitmap
    few = where if 2 * k <= n else np.flatnonzero(~nonzero)
    gaps = _plan_gaps(few, n)
    if bitmap.cost <= gaps.cost:
        return Mode.BITMAP, bitmap
    return (Mode.GAPS if 2 * k <= n else Mode.HOLES), gaps


def read_positions(mode: Mode, n: int, header: HeaderReader, streams: StreamReader) -> Array | None:
    """Return the sorted indices of the written entries, or None for all; the inverse of `plan_positions`."""
    if mode is Mode.NONE:
        return np.zeros(0, np.int64)
    if mode is Mode.DENSE:
        return None
    if mode is Mode.GAPS:
        return _read_gaps(n, header, streams)
    if mode is Mode.HOLES:
        keep = np.ones(n, bool)
        keep[_read_gaps(n, header, streams)] = False
        return np.flatnonzero(keep)
    bits = np.unpackbits(streams.take(Stream.BITMAPS, -(-n // 8)), bitorder="little")
    if bits[n:].any():
        raise CodecError(f"wire: the bitmap has positions beyond the {n} entries")
    return np.flatnonzero(bits[:n].view(bool))


def _plan_gaps(where: Array, n: int) -> Plan:
    """Golomb's split: the low bits of a gap are noise and travel raw, the high ones have a statistic.

    The high part is a byte; 255 stands for "255 and go on".
    """
    gaps = np.diff(where, prepend=-1) - 1
    # high parts are then 16 to 32 on average: fine steps for the statistic, and escapes are rare
    low = max(0, (n // where.size).bit_length() - 5)
    high = gaps >> low
    escapes = high // _ESCAPE
    coded = np.full(where.size + int(escapes.sum()), _ESCAPE, np.uint8)
    coded[np.cumsum(escapes + 1) - 1] = high % _ESCAPE
    rest = np.packbits((gaps[:, None] >> np.arange(low) & 1).astype(np.uint8), bitorder="little")
    head = bytes([low]) + varint(coded.size)
    cost = len(head) + coded_size(coded) + rest.size
    return Plan(head, [(Stream.GAPS, coded), (Stream.REMAINDERS, rest)], cost)


def _read_gaps(n: int, header: HeaderReader, streams: StreamReader) -> Array:
    low, size = header.byte(), header.varint()
    coded = streams.take(Stream.GAPS, size)
    if n >> low == 0 or (size and coded[-1] == _ESCAPE):
        raise CodecError(f"wire: gaps are malformed ({low} low bits, {size} bytes, for {n} entries)")
    ends = np.flatnonzero(coded != _ESCAPE)
    if ends.size > n:
        raise CodecError(f"wire: {ends.size} gaps for {n} entries")
    high = np.diff(np.cumsum(coded, dtype=np.int64)[ends], prepend=0)
    if (high > n >> low).any():
        raise CodecError(f"wire: a gap leads beyond the {n} entries")
    bits = np.unpackbits(
        streams.take(Stream.REMAINDERS, -(-ends.size * low // 8)), count=ends.size * low, bitorder="little"
    )
    rest = (bits.reshape(ends.size, low).astype(np.int64) << np.arange(low)).sum(axis=1)
    where = np.cumsum((high << low) + rest + 1) - 1
    if where.size and where[-1] >= n:
        raise CodecError(f"wire: position {where[-1]} is beyond the {n} entries")
    return where
