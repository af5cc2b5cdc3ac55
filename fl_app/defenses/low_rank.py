"""SVDefense: the largest singular directions of each layer, with error feedback."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.transforms import error_feedback as with_feedback
from fl_app.transforms import keep_rank


def low_rank(energy: float = 0.5, most: int | None = 1, error_feedback: bool = True) -> Defense:
    """Send the singular directions that hold ``energy`` of each layer, ``most`` at most (`keep_rank`)."""
    return Defense(with_feedback(keep_rank(energy, most), enabled=error_feedback))
