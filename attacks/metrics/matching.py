"""Assignment of recovered images to true ones: an attack on a batch cannot know the order."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def match(images: Tensor, truth: Tensor) -> list[int | None]:
    """Return, for each true image, the index of its recovered one, or None if there are too few.

    The assignment has the least total squared error (Hungarian); recovered images
    beyond the number of true ones stay unused.
    """
    if images.ndim != 4 or truth.ndim != 4 or images.shape[1:] != truth.shape[1:]:
        raise ValueError(
            f"match: expected two stacks (N, C, H, W) of one image size, "
            f"got {tuple(images.shape)} and {tuple(truth.shape)}"
        )
    recovered = images.detach().double().clamp(0, 1).flatten(1)
    true = truth.detach().to(images.device).double().clamp(0, 1).flatten(1)
    # differences rather than the expanded square: near-exact recoveries would drown in rounding
    cost = torch.stack([(recovered - row).square().mean(dim=1) for row in true]) if len(true) else None
    found: list[int | None] = [None] * len(true)
    if cost is not None:
        for row, column in zip(*linear_sum_assignment(cost.cpu().numpy()), strict=True):
            found[row] = int(column)
    return found
