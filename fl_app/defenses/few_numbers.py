"""The FL-TOP family, as a client sees it: which vector it sends (Kerkouche et al., UAI 2021)."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.sketches import Scheme, everything, fixed_coordinates, measurements, random_coordinates


def fl_std() -> Defense:
    """Send the whole update."""
    return _vectors(everything())


CHOSEN_BY = ("public", "vote")
"""What chooses the coordinates of FL-TOP: public samples, or the clients' votes."""


def fl_top(share: float, chosen_by: str = "public") -> Defense:
    """Train and send the coordinates that were agreed on, ``share`` of all, maybe by votes."""
    if chosen_by not in CHOSEN_BY:
        raise ValueError(f"fl_top: chosen_by must be one of {', '.join(CHOSEN_BY)}, got {chosen_by!r}")
    votes = chosen_by == "vote"
    return _vectors(fixed_coordinates(share, vote=votes), confined=True, votes_first=votes)


def fl_basic(share: float) -> Defense:
    """Train and send ``share`` of all coordinates, others in every round."""
    return _vectors(random_coordinates(share), confined=True)


def fl_cs(share: float) -> Defense:
    """Train everything and send measurements, as many as ``share`` of all coordinates."""
    return _vectors(measurements(share))


def _vectors(scheme: Scheme, *, confined: bool = False, votes_first: bool = False) -> Defense:
    return Defense(scheme=scheme, confined=confined, votes_first=votes_first, baseline=fl_std.__name__)
