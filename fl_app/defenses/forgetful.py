"""Dual gradient pruning whose error feedback forgets, so that later rounds tell less of the first ones."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.transforms import error_feedback, prune_dual


def forgetful(k1: float = 0.05, k2: float = 0.75, decay: float = 0.5, jump: float | None = 2.0) -> Defense:
    """Prune as DGP does; keep ``decay`` of the residual, and nothing after a round that jumps."""
    return Defense(error_feedback(prune_dual(k1, k2), decay=decay, jump=jump))
