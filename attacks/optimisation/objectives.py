"""Distances between guessed and observed gradients, over stacks of flat gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_NOTHING = 1e-6
"""Largest entry of a tensor, relative to that of the gradient, that may be rounding."""

Distance = Callable[[Tensor], Tensor]
"""From guessed gradients (P, n) to one number each (P,)."""
Matching = Callable[[Tensor, Tensor | None], Distance]
"""From observed gradients (P, n) or (1, n), and which entries count, to a distance."""


def cosine_distance(target: Tensor, mask: Tensor | None = None) -> Distance:
    """Return ``1 - cos(gradient, target)`` over the entries of ``mask`` (all without one).

    Geiping et al. 2020, Eq. (4), over all layers as one vector: the direction of the
    gradient carries the image, its length mostly how far training has come.
    """
    observed = _comparable(target, mask)
    observed = observed / _length(observed)

    def distance(gradient: Tensor) -> Tensor:
        guessed = _comparable(gradient, mask)
        return 1 - (guessed / _length(guessed) * observed).sum(dim=1)

    return distance


def squared_distance(target: Tensor, mask: Tensor | None = None) -> Distance:
    """Return the squared Euclidean distance over the entries of ``mask`` (all without one)."""

    def distance(gradient: Tensor) -> Tensor:
        difference = gradient - target
        return (difference if mask is None else difference * mask).square().sum(dim=1)

    return distance


def relative_distance(target: Tensor, mask: Tensor | None = None) -> Distance:
    """Return the squared distance in units of the observed gradient's own square, 1 for a gradient of zeros.

    Steps and tolerances then mean the same for gradients of every size, and the squares
    of small ones do not underflow.
    """
    observed = target if mask is None else target * mask
    largest = observed.abs().amax(dim=1, keepdim=True)
    length = largest * _comparable(target, mask).norm(dim=1, keepdim=True)
    unit = torch.where(length > 0, length, 1)
    distance = squared_distance(target / unit, mask)
    return lambda gradient: distance(gradient / unit)


def tensor_by_tensor(base: Matching, sizes: Sequence[int]) -> Matching:
    """Return the mean distance of tensors of ``sizes`` entries, however large the gradient of each is."""

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        parts = target.split(list(sizes), dim=1)
        masks = [None] * len(parts) if mask is None else mask.split(list(sizes), dim=1)
        # a tensor that has no gradient, such as a bias in front of a BatchNorm, tells nothing
        told = [part.abs().amax(dim=1) > _NOTHING * target.abs().amax(dim=1) for part in parts]
        distances = [base(*pair) for pair in zip(parts, masks, strict=True)]
        number = torch.stack(told).sum(dim=0).clamp_min(1)

        def mean(gradient: Tensor) -> Tensor:
            guessed = gradient.split(list(sizes), dim=1)
            each = [
                torch.where(counts, distance(part), 0)
                for counts, distance, part in zip(told, distances, guessed, strict=True)
            ]
            return torch.stack(each).sum(dim=0) / number

        return mean

    return matching


def round_by_round(base: Matching, rounds: int) -> Matching:
    """Return the mean distance of the rounds whose gradients are concatenated, however large each is."""

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        masks = [None] * rounds if mask is None else mask.chunk(rounds, dim=1)
        distances = [base(*pair) for pair in zip(target.chunk(rounds, dim=1), masks, strict=True)]

        def mean(gradient: Tensor) -> Tensor:
            parts = zip(distances, gradient.chunk(rounds, dim=1), strict=True)
            return torch.stack([distance(part) for distance, part in parts]).mean(dim=0)

        return mean

    return matching


def squashed(base: Matching, sizes: Sequence[int]) -> Matching:
    """Return the distance of little more than signs from an observation that has only signs.

    Every tensor of a guess (they have ``sizes`` entries) is squashed by ``tanh`` at its own mean size, so
    that large entries no longer outweigh the others, and brought to the size of the observed one.
    """

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        distance = base(target, mask)
        observed = [part.abs().amax(dim=1, keepdim=True) for part in target.split(sizes, dim=1)]

        def of_signs(gradient: Tensor) -> Tensor:
            parts = []
            for part, size in zip(gradient.split(sizes, dim=1), observed, strict=True):
                # the mean size is a unit, not something to be moved
                mean = part.detach().abs().mean(dim=1, keepdim=True).clamp_min(torch.finfo(part.dtype).tiny)
                parts.append(torch.tanh(part / mean) * size)
            return distance(torch.cat(parts, dim=1))

        return of_signs

    return matching


def _comparable(gradient: Tensor, mask: Tensor | None) -> Tensor:
    """Return the masked gradient with a largest entry of 1: squares of small ones would underflow."""
    masked = gradient if mask is None else gradient * mask
    largest = masked.detach().abs().amax(dim=1, keepdim=True)
    return masked / torch.where(largest > 0, largest, 1)


def _length(gradient: Tensor) -> Tensor:
    # with a largest entry of 1 only a gradient of zeros is shorter than the floor: its cosine is then 0
    return gradient.square().sum(dim=1, keepdim=True).clamp_min(0.5).sqrt()
