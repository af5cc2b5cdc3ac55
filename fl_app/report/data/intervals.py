"""Intervals of accuracies: how far test samples alone may move a share, and a difference of two."""

from __future__ import annotations

import math

_Z = 1.959964
"""Two-sided 95 % of a normal distribution."""


def half_width(share: float, count: int) -> float:
    """Return half the width of the 95 % interval of a share of ``count`` samples (Agresti and Coull)."""
    return _Z * math.sqrt(_variance(share, count, 2.0))


def half_width_of_difference(first: float, second: float, count: int) -> float:
    """Return half the width of the 95 % interval of a difference of two shares (Agresti and Caffo)."""
    return _Z * math.sqrt(_variance(first, count, 1.0) + _variance(second, count, 1.0))


def _variance(share: float, count: int, extra: float) -> float:
    """Return the variance of a share after ``extra`` further hits and misses: at 0 and 1 it is no 0."""
    adjusted = (share * count + extra) / (count + 2 * extra)
    return adjusted * (1 - adjusted) / (count + 2 * extra)
