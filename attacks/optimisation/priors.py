"""What images look like, whatever the gradient says: penalties over stacks of guesses."""

from __future__ import annotations

from torch import Tensor


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbours, down plus across: (P, B, C, H, W) to (P,)."""
    down = images[..., 1:, :] - images[..., :-1, :]
    across = images[..., 1:] - images[..., :-1]
    return _mean_size(down) + _mean_size(across)


def squared_length(images: Tensor) -> Tensor:
    """Return the mean square, in the space where mid-grey is zero: (P, B, C, H, W) to (P,)."""
    return images.square().flatten(1).mean(dim=1)


def _mean_size(differences: Tensor) -> Tensor:
    flat = differences.abs().flatten(1)
    # images one pixel wide have no neighbours, and no variation
    return flat.sum(dim=1) / max(1, flat.shape[1])
