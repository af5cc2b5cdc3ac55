"""The learning rate as a function of the round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """Use the same rate in every round."""
    _check("constant", lr)
    return lambda round: lr


def piecewise(lr: float, changes: Mapping[int, float]) -> Schedule:
    """Start with ``lr``; from each round in ``changes`` on use the rate given there."""
    for value in (lr, *changes.values()):
        _check("piecewise", value)
    if any(int(start) < 1 for start in changes):
        raise ValueError(f"piecewise: rounds start at 1, got {sorted(changes)}")
    ordered = sorted((int(start), value) for start, value in changes.items())

    def rate(round: int) -> float:
        return next((value for start, value in reversed(ordered) if start <= round), lr)

    return rate


def _check(who: str, lr: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"{who}: lr must be positive and finite, got {lr}")
