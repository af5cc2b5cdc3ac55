"""Defenses that send later: sums over enough samples, and nothing in the first rounds."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.transforms import accumulate as accumulated
from fl_app.transforms import skip_first


def accumulate(floor: int = 64) -> Defense:
    """Send a sum of updates once at least ``floor`` samples are behind it."""
    return Defense(accumulated(floor))


def warm_start(rounds: int = 20) -> Defense:
    """Send nothing in the first ``rounds`` rounds; give the run public weights with ``init=``."""
    return Defense(skip_first(rounds))
