"""Pruning defenses under their names: a transform of the update, by default with error feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.defenses.defense import Defense
from fl_app.transforms import (
    Transform,
    drop_smallest,
    keep_topk,
    perturb_outpost,
    prune_aligned,
    prune_dual,
)
from fl_app.transforms import error_feedback as with_feedback


def topk(share: float, error_feedback: bool = True) -> Defense:
    """Send the largest ``share`` of every layer."""
    return _pruning(keep_topk(share), error_feedback)


def dgp(k1: float, k2: float, min_size: int = 4, error_feedback: bool = True) -> Defense:
    """Withhold the largest ``k1`` and the smallest ``k2`` of every layer (`prune_dual`)."""
    return _pruning(prune_dual(k1, k2, min_size), error_feedback)


def adgp(
    k: float,
    k1: float,
    min_size: int = 4,
    error_feedback: bool = True,
    location: str = "random",
    voters: int = 3,
) -> Defense:
    """Send ``k`` of every layer at positions that clients named (`prune_aligned`), to strategy `ADGP`."""
    server = {"k": k, "min_size": min_size, "location": location, "voters": voters}
    return _pruning(prune_aligned(k, k1, min_size), error_feedback, server)


def graddrop(rate: float, error_feedback: bool = True) -> Defense:
    """Withhold the smallest ``rate`` of every layer."""
    return _pruning(drop_smallest(rate), error_feedback)


def outpost(
    prune: float = 0.8,
    noise: float = 0.8,
    noisy: float = 0.4,
    beta: float = 0.125,
    error_feedback: bool = True,
) -> Defense:
    """Prune and add noise, less often in later rounds (`perturb_outpost`)."""
    return _pruning(perturb_outpost(prune, noise, noisy, beta), error_feedback)


def _pruning(transform: Transform, feedback: bool, server: Mapping[str, Any] | None = None) -> Defense:
    return Defense(with_feedback(transform, enabled=feedback), server=server)
