"""The FL-TOP family, as a client sees it: which vector it sends (Kerkouche et al., UAI 2021)."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.sketches import everything, fixed_coordinates, measurements, random_coordinates


def fl_std() -> Defense:
    """Send the whole update."""
    return Defense(scheme=everything())


CHOSEN_BY = ("public", "vote")
"""What chooses the coordinates of FL-TOP: public samples, or the clients' votes."""


def fl_top(share: float, chosen_by: str = "public") -> Defense:
    """Train and send the coordinates that were agreed on, ``share`` of all, maybe by votes."""
    if chosen_by not in CHOSEN_BY:
        raise ValueError(f"fl_top: chosen_by must be one of {', '.join(CHOSEN_BY)}, got {chosen_by!r}")
    return Defense(scheme=fixed_coordinates(share, vote=chosen_by == "vote"))


def fl_basic(share: float) -> Defense:
    """Train and send ``share`` of all coordinates, others in every round."""
    return Defense(scheme=random_coordinates(share))


def fl_cs(share: float) -> Defense:
    """Train everything and send measurements, as many as ``share`` of all coordinates."""
    return Defense(scheme=measurements(share))
