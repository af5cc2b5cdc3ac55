"""Positions of a tensor's non-zero entries: a bitmap or gaps, whichever is smaller."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, coded_size, varint


class Mode(IntEnum):
    """Forms of a tensor's positions."""

    NONE = 0
    """All entries are zero."""
    DENSE = 1
    """No entry is zero."""
    BITMAP = 2
    GAPS = 3
    """Distances between non-zero entries."""
    HOLES = 4
    """Distances between zero entries."""
    JOINED = 5
    """Part of the joined tensors of its format, which follow all other tensors."""
    DRAWN = 6
    """A random set that the reader draws, too: see `fl_app.wire.drawn`."""


_ESCAPE = 255
# Huffman-coded bytes of a bitmap are within 1 % of the entropy above this density; below it
# the all-zero byte becomes so likely that its shortest possible code, one bit, is too long
_DENSE_ENOUGH = 0.125


def plan_positions(nonzero: Array, where: Array) -> tuple[Mode, Plan]:
    """Choose how to write ``where``, the sorted indices of the true entries of ``nonzero``; some, not all."""
    n, k = nonzero.size, where.size
    bits = np.packbits(nonzero, bitorder="little")
    bitmap = Plan(b"", [(Stream.BITMAPS, bits)])
    if min(k, n - k) > _DENSE_ENOUGH * n:
        return Mode.BITMAP, bitmap
    mode = Mode.GAPS if 2 * k <= n else Mode.HOLES
    gaps = _plan_gaps(where if mode is Mode.GAPS else np.flatnonzero(~nonzero), n)
    return (Mode.BITMAP, bitmap) if _cost(bitmap) <= _cost(gaps) else (mode, gaps)


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
    """Split gaps as Golomb does: the low bits are noise and go raw, the high part is entropy-coded.

    The high part is a byte; 255 means "255 and go on".
    """
    gaps = np.diff(where, prepend=-1) - 1
    low = _low_bits(n, where.size)
    high = gaps >> low
    escapes = high // _ESCAPE
    coded = np.full(where.size + int(escapes.sum()), _ESCAPE, np.uint8)
    coded[np.cumsum(escapes + 1) - 1] = high % _ESCAPE
    rest = np.packbits((gaps[:, None] >> np.arange(low) & 1).astype(np.uint8), bitorder="little")
    return Plan(varint(coded.size), [(Stream.GAPS, coded), (Stream.REMAINDERS, rest)])


def _cost(plan: Plan) -> float:
    return len(plan.header) + sum(coded_size(piece) for _, piece in plan.pieces)


def _read_gaps(n: int, header: HeaderReader, streams: StreamReader) -> Array:
    size = header.varint()
    if not 0 < size <= n + n // _ESCAPE:
        raise CodecError(f"wire: gaps of {size} bytes for {n} entries")
    coded = streams.take(Stream.GAPS, size)
    ends = np.flatnonzero(coded != _ESCAPE)
    if not ends.size or ends.size > n or ends[-1] != size - 1:
        raise CodecError(
            f"wire: {ends.size} gaps in {size} bytes for {n} entries, or the last one is incomplete"
        )
    low = _low_bits(n, ends.size)
    high = np.diff(np.cumsum(coded, dtype=np.int64)[ends], prepend=0)
    bits = np.unpackbits(
        streams.take(Stream.REMAINDERS, -(-ends.size * low // 8)), count=ends.size * low, bitorder="little"
    )
    rest = (bits.reshape(ends.size, low).astype(np.int64) << np.arange(low)).sum(axis=1)
    where = np.cumsum((high << low) + rest + 1) - 1
    if where[-1] >= n:
        raise CodecError(f"wire: position {where[-1]} is beyond the {n} entries")
    return where


def _low_bits(n: int, count: int) -> int:
    # high parts then average 4 to 8: few symbols, and raw low bits waste less than 0.01 bit
    return max(0, (n // count).bit_length() - 3)
