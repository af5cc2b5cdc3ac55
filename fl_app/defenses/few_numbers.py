"""The FL-TOP family, as a client sees it: which vector it sends (Kerkouche et al., UAI 2021)."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.sketches import Scheme, everything, fixed_coordinates, measurements, random_coordinates
from fl_app.types import Trace


def fl_std() -> Defense:
    """Send the whole update."""
    return _vectors(everything(), Trace(zeros_sent=True))


CHOSEN_BY = ("public", "vote")
"""Sources of FL-TOP's coordinates: public samples, or the clients' votes."""


def fl_top(share: float, chosen_by: str = "public") -> Defense:
    """Train and send the coordinates that were agreed on, ``share`` of all, maybe by votes."""
    if chosen_by not in CHOSEN_BY:
        raise ValueError(f"fl_top: chosen_by must be one of {', '.join(CHOSEN_BY)}, got {chosen_by!r}")
    votes = chosen_by == "vote"
    return _vectors(fixed_coordinates(share, vote=votes), Trace(confined=True), votes_first=votes)


def fl_basic(share: float) -> Defense:
    """Train and send ``share`` of all coordinates, others in every round."""
    return _vectors(random_coordinates(share), Trace(confined=True))


def fl_cs(share: float) -> Defense:
    """Train everything and send measurements, as many as ``share`` of all coordinates."""
    remark = "what was found for the measurements is matched as if it had been sent"
    return _vectors(measurements(share), Trace(zeros_sent=True, remark=remark))


def _vectors(scheme: Scheme, trace: Trace, *, votes_first: bool = False) -> Defense:
    return Defense(
        scheme=scheme,
        votes_first=votes_first,
        baseline=fl_std.__name__,
        trained=(trace,),
    )
