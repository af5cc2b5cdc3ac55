"""Exact shorter forms of values: a shorter float, a table of few values, multiples of a step.

Each function returns None where the form would lose a bit, and tests a sample
first, because most updates have no shorter form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_app.wire.patterns import Array
from fl_app.wire.planes import spread_sample

LARGEST_TABLE = 256
LOW_BITS = {4: (1 << 13) - 1, 8: (1 << 29) - 1}
"""Mask of the bits that are zero if a shorter float holds the value, by bytes of the float."""
_SAMPLE = 2048
_FEW = 16
_NEGATIVE_ZERO = -128  # as a multiple: the int8 that no symmetric rounding uses


def find_table(patterns: Array) -> tuple[Array, Array] | None:
    """Return the sorted distinct patterns and the index of each entry, if there are at most 256.

    Starts from a sample and adds the missing patterns: sorting the whole array would take far longer.
    """
    table = _distinct(spread_sample(patterns, _SAMPLE))
    for _ in range(8):
        indices = _look_up(patterns, table) if table.size <= LARGEST_TABLE else None
        if indices is None:
            return None
        missing = np.flatnonzero(table[indices] != patterns)
        if not missing.size:
            return table, indices
        table = _distinct(np.concatenate([table, patterns[missing[: 16 * _SAMPLE]]]))
    return None


@np.errstate(all="ignore")
def as_multiples(table: Array) -> tuple[Any, Array] | None:
    """Return a float step and int8 factors whose products are exactly the floats of ``table``."""
    values = table.view(f"f{table.itemsize}")
    sizes = np.abs(values[values != 0])
    if not sizes.size or not np.isfinite(sizes).all():
        return None
    whole = sizes.max() / values.dtype.type(127)
    for step in (sizes.min(), whole, np.nextafter(whole, sizes.max()), np.nextafter(whole, 0 * whole)):
        # no denormals: some processor modes flush a denormal product to zero
        if step < np.finfo(values.dtype).tiny or sizes.max() / step > 127.5:
            continue
        factors = np.rint(values / step)
        if np.array_equal((factors * step).view(table.dtype), table):
            return step, np.where(np.signbit(values) & (values == 0), _NEGATIVE_ZERO, factors).astype(np.int8)
    return None


def from_multiples(factors: Array, step: Any) -> Array:
    """Return the patterns of the products; the inverse of `as_multiples`."""
    with np.errstate(all="ignore"):
        values = factors.astype(step.dtype) * step
    values[factors == _NEGATIVE_ZERO] = -0.0
    patterns: Array = values.view(f"u{step.itemsize}")
    return patterns


def as_single(patterns: Array) -> Array | None:
    """Return float64 as float32."""
    return _narrow(patterns, "f4")


def as_half(patterns: Array) -> Array | None:
    """Return float32 as float16."""
    return _narrow(patterns, "f2")


def as_brain(patterns: Array) -> Array | None:
    """Return float32 as bfloat16."""
    if any((part & 0xFFFF).any() for part in (spread_sample(patterns, _FEW), patterns)):
        return None
    return (patterns >> 16).astype(np.uint16)


def from_brain(patterns: Array) -> Array:
    """Return bfloat16 as float32."""
    return patterns.astype(np.uint32) << 16


def widen(patterns: Array, itemsize: int) -> Array:
    """Return the patterns of the same floats in ``itemsize`` bytes."""
    with np.errstate(all="ignore"):
        return patterns.view(f"f{patterns.itemsize}").astype(f"f{itemsize}").view(f"u{itemsize}")


def _distinct(array: Array) -> Array:
    # numpy's own unique is several times slower on a few thousand entries
    ordered = np.sort(array)
    first = np.ones(ordered.size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _look_up(patterns: Array, table: Array) -> Array | None:
    """Return each pattern's index in ``table``; an arbitrary index if it is absent.

    Gathers once from 2**16 slots by a collision-free hash, found by trial. This is ten times as fast
    as a binary search if there are enough patterns to pay for filling the slots.
    """
    if patterns.size <= 2 * _SAMPLE:
        return np.minimum(np.searchsorted(table, patterns), table.size - 1).astype(np.uint8)
    bits = patterns.itemsize * 8
    for attempt in range(64):
        factor = patterns.dtype.type(0x9E3779B97F4A7C15 * (2 * attempt + 1) % (1 << bits))
        slots = table * factor >> max(bits - 16, 0)
        if _distinct(slots).size == table.size:
            indices = np.zeros(1 << 16, np.uint8)
            indices[slots] = np.arange(table.size)
            found: Array = indices[patterns * factor >> max(bits - 16, 0)]
            return found
    return None


def _narrow(patterns: Array, shorter: str) -> Array | None:
    if (spread_sample(patterns, _FEW) & LOW_BITS[patterns.itemsize]).any():
        return None
    longer = f"f{patterns.itemsize}"
    for part in (spread_sample(patterns, _SAMPLE), patterns):
        values = part.view(longer)
        with np.errstate(all="ignore"):
            narrow = values.astype(shorter)
            back = narrow.astype(longer)
        if not np.array_equal(back.view(part.dtype), part):
            return None
    # processors treat NaN payloads and single-precision denormals differently
    fragile = np.isnan(narrow)
    if shorter == "f4":
        fragile |= (np.abs(narrow) < np.finfo(np.float32).tiny) & (narrow.view(np.uint32) << 1 != 0)
    return None if fragile.any() else narrow.view(f"u{narrow.itemsize}")
