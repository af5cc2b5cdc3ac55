"""Byte planes of words: bytes of equal significance are stored together, few symbols are bit-packed.

A Huffman code spends at least one bit per symbol, and exponents have little more
entropy than that. Packing several exponents into a byte makes the limit harmless
and halves the entropy coder's input, or better.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader, order0_size


class Packing(IntEnum):
    """Compact form of a plane with few symbols: differences to a base, in few bits."""

    CONSTANT = 0
    BITS = 1
    CRUMBS = 2
    NIBBLES = 3
    ESCAPED_NIBBLES = 4
    """15 marks a symbol outside base..base + 14; the symbol itself goes to its plane's own stream."""


_WIDTHS = {Packing.BITS: 1, Packing.CRUMBS: 2, Packing.NIBBLES: 4, Packing.ESCAPED_NIBBLES: 4}
_STREAMS = {1: Stream.BITS, 2: Stream.CRUMBS, 4: Stream.NIBBLES}
_ESCAPE = 15
_SAMPLE = 4096
_FEW = 64
_MANY = 24


def plan_planes(words: Array) -> Plan:
    """Cut ``words`` (at least one) into planes and pack those that have few symbols."""
    width = words.itemsize
    planes = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(-1, width)
    packed, details = 0, bytearray()
    pieces: list[tuple[Stream, Array]] = []
    for i in range(width):
        plane = np.ascontiguousarray(planes[:, width - 1 - i])
        packing, base = _choose_packing(plane)
        if packing is None:
            pieces.append((_stream_of(i), plane))
        else:
            packed |= 1 << i
            details += bytes([packing, base])
            pieces += _pack(plane, packing, base, _stream_of(i))
    return Plan(bytes([packed, *details]), pieces)


def estimate_planes(sample: Array, count: int) -> float:
    """Estimate the bytes of `plan_planes` for ``count`` words that look like ``sample``."""
    planes = sample.view(np.uint8).reshape(-1, sample.itemsize)
    return 1 + sum(order0_size(planes[:, i], count) for i in range(sample.itemsize))


def read_planes(count: int, width: int, header: HeaderReader, streams: StreamReader) -> Array:
    """Return ``count`` words of ``width`` bytes; the inverse of `plan_planes`."""
    packed = header.byte()
    if packed >> width:
        raise CodecError(f"wire: packed planes {packed:#x} of a word of {width} bytes")
    planes = np.empty((count, width), np.uint8)
    for i in range(width):
        planes[:, width - 1 - i] = (
            _unpack(count, _stream_of(i), header, streams)
            if packed >> i & 1
            else streams.take(_stream_of(i), count)
        )
    words: Array = planes.view(f"<u{width}").reshape(-1)
    return words.astype(f"u{width}", copy=False)


def spread_sample(array: Array, size: int) -> Array:
    """Return about ``size`` evenly spaced entries of ``array``, or all of a short one."""
    # an odd stride: an even one could hit the same column of every row
    return np.ascontiguousarray(array[:: array.size // size | 1]) if array.size > size else array


def _stream_of(plane: int) -> Stream:
    return Stream(Stream.PLANE_0 + plane)


def _choose_packing(plane: Array) -> tuple[Packing | None, int]:
    """Return a packing and its base; None if packing gains nothing."""
    # most planes hold all symbols, which a small sample reveals
    if len(set(spread_sample(plane, _FEW).tobytes())) > _MANY:
        return None, 0
    low, high = int(plane.min()), int(plane.max())
    if high == low and plane.size > 2:
        return Packing.CONSTANT, low
    for packing in (Packing.BITS, Packing.CRUMBS, Packing.NIBBLES):
        if high - low < 1 << _WIDTHS[packing] and plane.size > 4:
            return packing, low
    seen = spread_sample(plane, _SAMPLE)
    counts = np.bincount(seen, minlength=256)
    below = np.concatenate([[0], counts.cumsum()])
    inside = below[_ESCAPE:] - below[:-_ESCAPE]  # i: symbols i to i + 14
    base = int(inside.argmax())
    if plane.size >= 64 and inside[base] >= 0.99 * seen.size:
        return Packing.ESCAPED_NIBBLES, base
    return None, 0


def _pack(plane: Array, packing: Packing, base: int, own: Stream) -> list[tuple[Stream, Array]]:
    if packing is Packing.CONSTANT:
        return []
    codes: Array = plane - np.uint8(base)
    width = _WIDTHS[packing]
    if packing is not Packing.ESCAPED_NIBBLES:
        return [(_STREAMS[width], _join(codes, width))]
    codes = np.minimum(codes, np.uint8(_ESCAPE))  # symbols below the base have wrapped, so they escape too
    return [(_STREAMS[width], _join(codes, width)), (own, plane[codes == _ESCAPE])]


def _unpack(count: int, own: Stream, header: HeaderReader, streams: StreamReader) -> Array:
    code, base = header.byte(), header.byte()
    if code not in set(Packing):
        raise CodecError(f"wire: packing {code} is unknown, expected one of {sorted(map(int, Packing))}")
    packing = Packing(code)
    if packing is Packing.CONSTANT:
        return np.full(count, base, np.uint8)
    width = _WIDTHS[packing]
    codes = _split(streams.take(_STREAMS[width], -(-count * width // 8)), width, count)
    plane: Array = codes + np.uint8(base)
    if packing is Packing.ESCAPED_NIBBLES:
        escaped = np.flatnonzero(codes == _ESCAPE)
        plane[escaped] = streams.take(own, escaped.size)
    return plane


def _join(codes: Array, width: int) -> Array:
    """Pack codes of 1, 2 or 4 bits into bytes, the first in the lowest bits."""
    if width == 1:
        return np.packbits(codes, bitorder="little")
    per = 8 // width
    padded = np.concatenate([codes, np.zeros(-codes.size % per, np.uint8)])
    joined: Array = padded[0::per].copy()
    for i in range(1, per):
        joined |= padded[i::per] << (i * width)
    return joined


def _split(joined: Array, width: int, count: int) -> Array:
    if width == 1:
        return np.unpackbits(joined, count=count, bitorder="little")
    per = 8 // width
    codes = np.empty((joined.size, per), np.uint8)
    for i in range(per):
        codes[:, i] = joined >> (i * width) & ((1 << width) - 1)
    return codes.reshape(-1)[:count]
