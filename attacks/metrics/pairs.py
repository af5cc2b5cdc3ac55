"""Common input of all metrics: two equal stacks of images, clamped to [0, 1]."""

from __future__ import annotations

from torch import Tensor


def as_pairs(images: Tensor, truth: Tensor, *, who: str) -> tuple[Tensor, Tensor]:
    """Return both stacks clamped to [0, 1], on the device of ``images``."""
    if images.ndim != 4 or images.shape != truth.shape:
        raise ValueError(
            f"{who}: expected equal stacks (N, C, H, W), got {tuple(images.shape)} and {tuple(truth.shape)}"
        )
    return images.detach().clamp(0, 1), truth.detach().to(images.device).clamp(0, 1)
