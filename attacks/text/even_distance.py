"""Distance in which small parts of a gradient count as much as large ones.

Of a masked sentence, the places that were masked make almost all of the gradient. The others act on it by
attention alone: in an untrained model their rows of the position embeddings' gradient are a few hundred
times smaller, and their share of the squared distance is lost in the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.optimisation.objectives import Distance, Matching, squared_distance
from attacks.optimisation.problem import Problem
from attacks.text.language_model import POSITIONS, original_names

FLOOR = 1e-6
"""A part that is smaller than this part of the largest is rounding, and does not count."""


def even_distance(sizes: Sequence[int], shares: Sequence[float]) -> Matching:
    """Return the squared distance with each part (of these sizes) in units of its own norm and share."""

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        observed = target if mask is None else target * mask
        norms = torch.stack([part.norm(dim=1) for part in observed.split(list(sizes), dim=1)], dim=1)
        counts = norms > FLOOR * norms.amax(dim=1, keepdim=True)
        roots = torch.tensor(shares, dtype=target.dtype, device=target.device).sqrt()
        weights = torch.where(counts, roots / torch.where(counts, norms, 1), 0)
        each = weights.repeat_interleave(torch.tensor(sizes, device=target.device), dim=1)
        distance = squared_distance(target * each, mask)
        return lambda gradient: distance(gradient * each)

    return matching


def by_tensor_and_position(problem: Problem, length: int) -> Matching:
    """Return the distance in which all tensors count alike, and all positions together as much as those."""
    sizes: list[int] = []
    shares: list[float] = []
    others = max(1, sum(name != POSITIONS for name in original_names(problem)))
    for name, size in zip(original_names(problem), problem.sizes, strict=True):
        if name == POSITIONS:
            width = problem.input_shape[2]
            sizes += [width] * (size // width)
            shares += [1 / length] * (size // width)
        else:
            sizes.append(size)
            shares.append(1 / others)
    return even_distance(sizes, shares)
