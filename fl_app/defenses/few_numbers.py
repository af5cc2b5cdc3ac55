"""Client side of the FL-TOP family: the vector to send (Kerkouche et al., UAI 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.defenses.defense import Defense
from fl_app.sketches import Scheme, everything, fixed_coordinates, measurements, random_coordinates
from fl_app.types import Trace


def fl_std() -> Defense:
    """Send the whole update."""
    return _vectors(everything(), Trace(zeros_sent=True))


CHOSEN_BY = ("public", "vote")
"""Sources of FL-TOP's coordinates: public samples, or the clients' votes."""


def fl_top(
    share: float, chosen_by: str = "public", public_steps: int = 20, public_lr: float | None = None
) -> Defense:
    """Train and send only the agreed coordinates, ``share`` of all.

    The clients vote on them, or the server finds them on public samples with ``public_steps`` and
    ``public_lr``.
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
    return _vectors(fixed_coordinates(share, vote=votes), Trace(confined=True), server, votes_first=votes)


def fl_basic(share: float) -> Defense:
    """Train and send a random ``share`` of all coordinates, drawn anew in every round."""
    return _vectors(random_coordinates(share), Trace(confined=True), {"share": share})


def fl_cs(share: float) -> Defense:
    """Train everything and send measurements, as many as ``share`` of all coordinates."""
    remark = "what was found for the measurements is matched as if it had been sent"
    return _vectors(measurements(share), Trace(zeros_sent=True, remark=remark), {"share": share})


def _vectors(
    scheme: Scheme, trace: Trace, server: Mapping[str, Any] | None = None, *, votes_first: bool = False
) -> Defense:
    return Defense(
        scheme=scheme,
        votes_first=votes_first,
        server=server,
        baseline=fl_std.__name__,
        trained=(trace,),
    )
