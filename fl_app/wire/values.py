"""Values of a tensor: in their shortest exact form, then cut into byte planes."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from fl_app.wire.carriers import (
    LOW_BITS,
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
from fl_app.wire.planes import estimate_planes, plan_planes, read_planes, spread_sample
from fl_app.wire.streams import HeaderReader, Plan, Stream, StreamReader


class Carrier(IntEnum):
    """Form in which values travel in place of the patterns."""

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


class Form(NamedTuple):
    """Patterns in one carrier."""

    carrier: Carrier
    words: Array
    table: Array
    """The values of a table, or the step of multiples."""


Found = tuple[Array, Array] | None
"""A table and the index of each entry in it."""

_SAMPLE = 4096
_FEW = 128
_NO_TABLE: Array = np.zeros(0, np.uint8)


def is_ordinary(patterns: Array, family: Family) -> bool:
    """Return whether a sample of ``patterns`` (at least one) already shows that no carrier is shorter.

    Of 128 draws from a table of at most 256, two are almost surely equal. Multiples of a step can
    only avoid a repetition if they are few, and then all of them are checked.
    """
    sample = spread_sample(patterns, _FEW)
    words = sample.tolist()
    if len(set(words)) < len(words):
        return False
    if family != "float" or patterns.itemsize == 2:
        return True
    if not any(word & LOW_BITS[patterns.itemsize] for word in words):
        return False
    if not 4 <= patterns.size <= 2 * _FEW:
        return True
    numbers = sample.view(f"f{sample.itemsize}").tolist()
    sizes = [abs(number) for number in numbers if number]
    return not any(_near_multiples(numbers, step) for step in (min(sizes), max(sizes) / 127))


def plan_values(patterns: Array, family: Family) -> Plan:
    """Write ``patterns`` (at least one) in the form that is smallest for a sample and exact for all."""
    if is_ordinary(patterns, family):
        return _plan_form(Form(Carrier.PLAIN, fold_sign(patterns, family), _NO_TABLE))
    ranked = _ranked_forms(patterns, family)
    if ranked[0].words.size == patterns.size:
        return _plan_form(ranked[0])
    few = any(form.carrier is Carrier.TABLE for form in ranked)
    found = find_table(patterns) if few else None
    exact = (_carry(form.carrier, patterns, family, found) for form in ranked)
    return _plan_form(next(form for form in exact if form is not None))  # the plain form always is


def read_values(
    count: int, itemsize: int, family: Family, header: HeaderReader, streams: StreamReader
) -> Array:
    """Return ``count`` patterns (at least one); the inverse of `plan_values`."""
    carrier, possible = header.byte(), _possible_carriers(itemsize, family)
    if carrier not in possible:
        raise CodecError(
            f"wire: carrier {carrier} is not possible, expected one of {sorted(map(int, possible))}"
        )
    if carrier == Carrier.TABLE:
        size = header.byte() + 1
        table = _take_table(size, itemsize, streams)
        indices = read_planes(count, 1, header, streams)
        if int(indices.max()) >= size:
            raise CodecError(f"wire: index {indices.max()} into a table of {size} values")
        return table[indices]
    if carrier == Carrier.MULTIPLES:
        step = _take_table(1, itemsize, streams).view(f"f{itemsize}")[0]
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
    if family == "unsigned":
        return patterns
    words = patterns << 1
    sign = patterns >> patterns.itemsize * 8 - 1
    if family == "float":
        words |= sign
    else:
        words ^= sign * np.iinfo(patterns.dtype).max
    return words


def _unfold_sign(words: Array, family: Family) -> Array:
    """Invert `fold_sign`, in the memory of ``words``."""
    if family == "unsigned":
        return words
    if family == "float":
        sign = words << words.itemsize * 8 - 1
        words >>= 1
        words |= sign
    else:
        sign = (words & 1) * np.iinfo(words.dtype).max
        words >>= 1
        words ^= sign
    return words


def _near_multiples(numbers: list[float], step: float) -> bool:
    return step > 0 and all((number / step + 0.001) % 1 < 0.002 for number in numbers)


def _ranked_forms(patterns: Array, family: Family) -> list[Form]:
    """Return the forms that are exact for a sample, the smallest first."""
    sample = spread_sample(patterns, _SAMPLE)
    carriers = _possible_carriers(patterns.itemsize, family)
    found = find_table(sample) if Carrier.TABLE in carriers else None
    forms = [form for carrier in carriers if (form := _carry(carrier, sample, family, found)) is not None]
    return sorted(forms, key=lambda form: _cost(form, patterns.size))


def _possible_carriers(itemsize: int, family: Family) -> list[Carrier]:
    possible = [Carrier.PLAIN]
    if itemsize == 8 and family == "float":
        possible.append(Carrier.SINGLE)
    if itemsize > 2 and family == "float":
        possible += [Carrier.HALF, Carrier.BRAIN, Carrier.MULTIPLES]
    if itemsize > 1:
        possible.append(Carrier.TABLE)
    return possible


def _carry(carrier: Carrier, patterns: Array, family: Family, found: Found) -> Form | None:
    """Return ``patterns`` in a carrier, or None if it would lose a bit; ``found`` is their table, if any."""
    if carrier is Carrier.PLAIN:
        return Form(carrier, fold_sign(patterns, family), _NO_TABLE)
    if carrier in (Carrier.TABLE, Carrier.MULTIPLES):
        return None if found is None else _carry_few(carrier, *found)
    short = as_single(patterns) if patterns.itemsize == 8 else patterns
    if short is not None and carrier is not Carrier.SINGLE:
        short = as_half(short) if carrier is Carrier.HALF else as_brain(short)
    return None if short is None else Form(carrier, fold_sign(short, family), _NO_TABLE)


def _carry_few(carrier: Carrier, table: Array, indices: Array) -> Form | None:
    if carrier is Carrier.TABLE:
        return Form(carrier, indices, table)
    multiples = as_multiples(table)
    if multiples is None:
        return None
    step, factors = multiples
    return Form(carrier, fold_sign(factors.view(np.uint8), "signed")[indices], np.array([step]))


def _cost(form: Form, count: int) -> float:
    cost = 1 + form.table.nbytes + estimate_planes(form.words, count)
    return cost * (
        1 + 0.02 * form.words.itemsize
    )  # estimates are rough: a tie goes to the form with fewer planes


def _plan_form(form: Form) -> Plan:
    header, pieces = plan_planes(form.words)
    size = bytes([form.table.size - 1]) if form.carrier is Carrier.TABLE else b""
    # the byte order of blobs, regardless of the machine's
    table = form.table.astype(form.table.dtype.newbyteorder("<")).view(np.uint8)
    return Plan(bytes([form.carrier]) + size + header, [(Stream.TABLES, table), *pieces])


def _take_table(count: int, itemsize: int, streams: StreamReader) -> Array:
    data = streams.take(Stream.TABLES, count * itemsize).tobytes()
    return np.frombuffer(data, f"<u{itemsize}").astype(f"u{itemsize}")
