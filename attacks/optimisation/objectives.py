"""How far a guessed gradient is from the observed one: distances over stacks of flat gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Distance = Callable[[Tensor], Tensor]
"""From guessed gradients (P, n) to one number each (P,)."""
Matching = Callable[[Tensor, Tensor | None], Distance]
"""From observed gradients (P, n) or (1, n), and which entries count, to a distance."""


def cosine_distance(target: Tensor, mask: Tensor | None = None) -> Distance:
    """Return ``1 - cos(gradient, target)`` over the entries of ``mask`` (all without one).

    Geiping et al. 2020, Eq. (4), over all layers as one vector: the direction of the
    gradient carries the image, its length mostly how far training has come.
    """
    tiny = torch.finfo(target.dtype).tiny
    masked = target if mask is None else target * mask
    # unit length first: gradients of saturated models are small enough for products to underflow
    scale = masked.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    unit = masked / scale
    unit = unit / unit.norm(dim=1, keepdim=True).clamp_min(tiny)

    def distance(gradient: Tensor) -> Tensor:
        if mask is not None:
            gradient = gradient * mask
        gradient = gradient / gradient.detach().abs().amax(dim=1, keepdim=True).clamp_min(tiny)
        # the floor only matters for a gradient of zeros, whose distance is then 1
        length = gradient.square().sum(dim=1).clamp_min(tiny).sqrt()
        return 1 - (gradient * unit).sum(dim=1) / length

    return distance


def squared_distance(target: Tensor, mask: Tensor | None = None) -> Distance:
    """Return the squared Euclidean distance over the entries of ``mask`` (all without one)."""

    def distance(gradient: Tensor) -> Tensor:
        difference = gradient - target
        return (difference if mask is None else difference * mask).square().sum(dim=1)

    return distance
