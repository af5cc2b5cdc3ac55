"""Clipping and noise at the bytes of a pruned update."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.transforms import clip_and_noise_on_support


def noisy_support(share: float = 0.18, clip: float = 1.0, std: float = 0.05, seed: int = 0) -> Defense:
    """Send a public random ``share`` of each layer, clipped and with noise (`clip_and_noise_on_support`)."""
    return Defense(clip_and_noise_on_support(share, clip, std, seed))
