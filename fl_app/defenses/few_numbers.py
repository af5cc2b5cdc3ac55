"""The FL-TOP family, as a client sees it: which vector it sends (Kerkouche et al., UAI 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.defenses.defense import Defense
from fl_app.sketches import Scheme, everything, fixed_coordinates, measurements, random_coordinates


def fl_std() -> Defense:
    """Send the whole update."""
    return _vectors(everything())


CHOSEN_BY = ("public", "vote")
"""What chooses the coordinates of FL-TOP: public samples, or the clients' votes."""


def fl_top(
    share: float, chosen_by: str = "public", public_steps: int = 20, public_lr: float | None = None
) -> Defense:
    """Train and send the coordinates that were agreed on, ``share`` of all, maybe by votes.

    ``public_steps`` and ``public_lr`` are for the server, which finds them on public samples.
    """
    if chosen_by not in CHOSEN_BY:
        raise ValueError(f"fl_top: chosen_by must be one of {', '.join(CHOSEN_BY)}, got {chosen_by!r}")
    votes = chosen_by == "vote"
    server = {
        "share": share,
        "chosen_by": chosen_by,
        "public_steps": public_steps,
        "public_lr": public_lr,
    }
    return _vectors(fixed_coordinates(share, vote=votes), server, confined=True, votes_first=votes)


def fl_basic(share: float) -> Defense:
    """Train and send ``share`` of all coordinates, others in every round."""
    return _vectors(random_coordinates(share), {"share": share}, confined=True)


def fl_cs(share: float) -> Defense:
    """Train everything and send measurements, as many as ``share`` of all coordinates."""
    return _vectors(measurements(share), {"share": share})


def _vectors(
    scheme: Scheme,
    server: Mapping[str, Any] | None = None,
    *,
    confined: bool = False,
    votes_first: bool = False,
) -> Defense:
    return Defense(
        scheme=scheme,
        confined=confined,
        votes_first=votes_first,
        server=server,
        baseline=fl_std.__name__,
    )
