"""The values of a tensor: carried in their shortest exact form, then cut into planes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from fl_app.wire.carriers import (
    as_brain,
    as_half,
    as_multiples,
    as_single,
    find_table,
    from_brain,
    from_multiples,
    widen,
)
from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array, Family
from fl_app.wire.planes import plan_planes, read_planes
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader


class Carrier(IntEnum):
    """What travels in place of the patterns."""

    PLAIN = 0
    SINGLE = 1
    """float32, for float64."""
    HALF = 2
    """float16, for float32 and float64."""
    BRAIN = 3
    """bfloat16, for float32 and float64."""
    MULTIPLES = 4
    """int8 and one step, for float32 and float64."""
    TABLE = 5
    """An index into a table of at most 256 patterns."""


def plan_values(patterns: Array, family: Family) -> Plan:
    """Choose how to write ``patterns`` (at least one)."""
    plans = [_plan(Carrier.PLAIN, fold_sign(patterns, family))]
    if patterns.itemsize > 1:
        plans += [*_few_values(patterns, family), *_shorter_floats(patterns, family)]
    return min(plans, key=lambda plan: plan.cost)


def read_values(count: int, itemsize: int, family: Family, header: HeaderReader, streams: StreamReader) -> Array:
    """Return ``count`` patterns; the inverse of `plan_values`."""
    carrier, possible = header.byte(), _possible_carriers(itemsize, family)
    if carrier not in possible:
        raise CodecError(f"wire: carrier {carrier} is not possible here, expected one of {possible}")
    if carrier == Carrier.TABLE:
        size = header.byte() + 1
        table = _take_words(size, itemsize, streams)
        indices = read_planes(count, 1, header, streams)
        if int(indices.max()) >= size:
            raise CodecError(f"wire: index {indices.max()} into a table of {size} values")
        return table[indices]
    if carrier == Carrier.MULTIPLES:
        step = _take_words(1, itemsize, streams).view(f"f{itemsize}")[0]
        factors = _unfold_sign(read_planes(count, 1, header, streams), "signed")
        return from_multiples(factors.view(np.int8), step)
    width = {Carrier.PLAIN: itemsize, Carrier.SINGLE: 4}.get(Carrier(carrier), 2)
    patterns = _unfold_sign(read_planes(count, width, header, streams), family)
    if carrier == Carrier.BRAIN:
        patterns = from_brain(patterns)
    return patterns if patterns.itemsize == itemsize else widen(patterns, itemsize)


def fold_sign(patterns: Array, family: Family) -> Array:
    """Move the sign into the lowest bit, of a float by rotation, of an integer by zigzag.

    The exponent of a float32 is then a byte of its own, and small integers have small words.
    """
    top = patterns.itemsize * 8 - 1
    if family == "float":
        return patterns << 1 | patterns >> top
    if family == "signed":
        return patterns << 1 ^ (patterns >> top) * np.iinfo(patterns.dtype).max
    return patterns


def _unfold_sign(words: Array, family: Family) -> Array:
    top = words.itemsize * 8 - 1
    if family == "float":
        return words >> 1 | words << top
    if family == "signed":
        return words >> 1 ^ (words & 1) * np.iinfo(words.dtype).max
    return words


def _plan(carrier: Carrier, words: Array, *, head: bytes = b"", table: Array | None = None) -> Plan:
    header, pieces, cost = plan_planes(words)
    header = bytes([carrier]) + head + header
    if table is not None:
        # byte order of the blob, whatever that of the machine
        data = np.frombuffer(table.astype(table.dtype.newbyteorder("<")).tobytes(), np.uint8)
        pieces = [(Stream.TABLES, data), *pieces]
        cost += data.size
    return Plan(header, pieces, cost + 1 + len(head))


def _take_words(count: int, itemsize: int, streams: StreamReader) -> Array:
    data = streams.take(Stream.TABLES, count * itemsize).tobytes()
    return np.frombuffer(data, f"<u{itemsize}").astype(f"u{itemsize}")


def _few_values(patterns: Array, family: Family) -> Iterator[Plan]:
    found = find_table(patterns)
    if found is None:
        return
    table, indices = found
    yield _plan(Carrier.TABLE, indices, head=bytes([table.size - 1]), table=table)
    multiples = as_multiples(table) if Carrier.MULTIPLES in _possible_carriers(table.itemsize, family) else None
    if multiples is not None:
        step, factors = multiples
        words = fold_sign(factors.view(np.uint8), "signed")
        yield _plan(Carrier.MULTIPLES, words[indices], table=np.array([step]))


def _shorter_floats(patterns: Array, family: Family) -> Iterator[Plan]:
    if family != "float" or patterns.itemsize == 2:
        return
    single = as_single(patterns) if patterns.itemsize == 8 else patterns
    if single is None:
        return
    if patterns.itemsize == 8:
        yield _plan(Carrier.SINGLE, fold_sign(single, family))
    for carrier, shorten in ((Carrier.HALF, as_half), (Carrier.BRAIN, as_brain)):
        short = shorten(single)
        if short is not None:
            yield _plan(carrier, fold_sign(short, family))


def _possible_carriers(itemsize: int, family: Family) -> list[int]:
    possible: list[int] = [Carrier.PLAIN]
    if itemsize == 8 and family == "float":
        possible.append(Carrier.SINGLE)
    if itemsize > 2 and family == "float":
        possible += [Carrier.HALF, Carrier.BRAIN, Carrier.MULTIPLES]
    if itemsize > 1:
        possible.append(Carrier.TABLE)
    return list(map(int, possible))
