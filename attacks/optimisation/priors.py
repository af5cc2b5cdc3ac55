"""Image priors: penalties over stacks of guesses, independent of the gradient."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

FLAT = 1e-4
"""Far shorter steps (a grey level is 0.016) count by their square: the root has no slope at zero."""


def total_variation(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbours, down plus across: (P, B, C, H, W) to (P,)."""
    down = images[..., 1:, :] - images[..., :-1, :]
    across = images[..., 1:] - images[..., :-1]
    return _mean_size(down) + _mean_size(across)


def colour_variation(images: Tensor) -> Tensor:
    """Return the mean length of the step from pixel to pixel: (P, B, C, H, W) to (P,).

    A step is down and across, in all channels together (root of the mean square over these),
    so that edges may have any direction and cost least where the channels share them, as
    those of photographs do.
    """
    down = F.pad(images[..., 1:, :] - images[..., :-1, :], (0, 0, 0, 1))
    across = F.pad(images[..., 1:] - images[..., :-1], (0, 1))
    squares = (down.square() + across.square()).mean(dim=2)
    return ((squares + FLAT**2).sqrt() - FLAT).flatten(1).mean(dim=1)


def squared_length(images: Tensor) -> Tensor:
    """Return the mean square, in the space where mid-grey is zero: (P, B, C, H, W) to (P,)."""
    return images.square().flatten(1).mean(dim=1)


def _mean_size(differences: Tensor) -> Tensor:
    flat = differences.abs().flatten(1)
    # images one pixel wide have no neighbours, and no variation
    return flat.sum(dim=1) / max(1, flat.shape[1])
