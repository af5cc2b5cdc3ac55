"""Learning-rate schedules: the rate as a function of the round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fl_app.sketches.selection import floor_count

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """Use the same rate in every round."""
    _check("constant", lr)
    return lambda round: lr


def piecewise(lr: float, changes: Mapping[float, float] | None = None, of: int | None = None) -> Schedule:
    """Start with ``lr``; switch to each rate in ``changes`` at its round.

    With ``of``, the number of rounds, the keys of ``changes`` are shares of it: 0.5 of 100 rounds means
    from round 51 on.
    """
    changes = changes or {}
    for value in (lr, *changes.values()):
        _check("piecewise", value)
    if of is None and any(int(start) != start or start < 1 for start in changes):
        raise ValueError(f"piecewise: changes are at rounds, 1 or more, got {sorted(changes)}")
    if of is not None and any(not 0 <= share < 1 for share in changes):
        raise ValueError(
            f"piecewise: changes are after shares in [0, 1) of {of} rounds, got {sorted(changes)}"
        )
    ordered = sorted(
        (int(start) if of is None else floor_count(start, of) + 1, value) for start, value in changes.items()
    )

    def rate(round: int) -> float:
        return next((value for start, value in reversed(ordered) if start <= round), lr)

    return rate


def _check(who: str, lr: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"{who}: lr must be positive and finite, got {lr}")
