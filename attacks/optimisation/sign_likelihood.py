"""Likelihood of signs, and of the support of an update that keeps little more than those.

An update of signs says of each entry on which side of zero it lies, not how far. A guess is judged by the
logistic likelihood of these answers, in units of each tensor's own size, as a classifier is. Where only the
largest entries of a tensor were sent, a guess must also put those first: each must exceed the guess's own
k-th largest entry, and no other may.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.optimisation.objectives import Distance, Matching

STEEPNESS = 2.0
"""Slope of the likelihood: an entry of a tensor's usual size with the right sign is 88 % sure."""
DIRECTION = 0.3
"""Weight of the distance on the sent values, which knows the sizes of tensors."""


def sign_likelihood(base: Matching, sizes: Sequence[int]) -> Matching:
    """Return the mean negative log-likelihood of observed signs, plus a part of the distance ``base``.

    Tensors have ``sizes`` entries. An entry that was sent as 0 was 0, such as that of a unit that is off.
    """

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        distance = base(target, mask)
        sent = torch.ones_like(target, dtype=torch.bool) if mask is None else mask.bool()
        signs = [part.sign() for part in target.split(list(sizes), dim=1)]
        there = [part.to(target.dtype) for part in sent.split(list(sizes), dim=1)]
        number = sent.sum(dim=1).clamp_min(1)

        def of_signs(gradient: Tensor) -> Tensor:
            total = gradient.new_zeros(len(gradient))
            for part, sign, counts in zip(gradient.split(list(sizes), dim=1), signs, there, strict=True):
                scaled = part / _usual_size(part)
                unlikely = torch.where(
                    sign == 0, scaled.square().log1p(), F.softplus(-STEEPNESS * sign * scaled)
                )
                total = total + (counts * unlikely).sum(dim=1)
            return total / number + DIRECTION * distance(gradient)

        return of_signs

    return matching


def support_hinge(base: Matching, sizes: Sequence[int]) -> Matching:
    """Return the distance of a guess from an update whose sent entries are the largest of each tensor.

    Mean square by which entries are on the wrong side of the guess's own threshold, in units of that
    threshold, plus the mean over the tensors of the distance ``base`` on their sent entries: each tensor
    counts alike, because their sizes depend on what was withheld.
    """

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        sent = target != 0 if mask is None else mask.bool()
        number = sent.sum(dim=1).clamp_min(1)
        tensors = [
            (part.sign(), there, there.sum(dim=1, keepdim=True), base(part, there.to(part.dtype)))
            for part, there in zip(
                target.split(list(sizes), dim=1), sent.split(list(sizes), dim=1), strict=True
            )
        ]

        def of_support(gradient: Tensor) -> Tensor:
            wrong = gradient.new_zeros(len(gradient))
            apart = gradient.new_zeros(len(gradient))
            for part, (sign, there, kept, distance) in zip(
                gradient.split(list(sizes), dim=1), tensors, strict=True
            ):
                threshold = _threshold(part, kept)
                short = (threshold - sign * part).clamp_min(0) * there
                over = (part.abs() - threshold).clamp_min(0) * ~there
                excess = ((short + over) / threshold).square().sum(dim=1)
                wrong = wrong + torch.where(kept.squeeze(1) > 0, excess, 0)
                apart = apart + distance(part)
            return wrong / number + apart / len(tensors)

        return of_support

    return matching


def _usual_size(part: Tensor) -> Tensor:
    """Return the root mean square of each row, a unit that is not moved."""
    return part.detach().square().mean(dim=1, keepdim=True).sqrt().clamp_min(torch.finfo(part.dtype).tiny)


def _threshold(part: Tensor, number: Tensor) -> Tensor:
    """Return the size of each row's ``number``-th largest entry, which is not moved."""
    sizes = part.detach().abs()
    most = max(1, int(number.max()))
    largest = sizes.topk(min(most, sizes.shape[1]), dim=1).values
    found = largest.gather(1, (number - 1).clamp(0, largest.shape[1] - 1))
    # a guess that is nearly flat has a threshold all the same: its squares must not overflow
    floor = 1e-6 * sizes.amax(dim=1, keepdim=True)
    return torch.maximum(found, floor).clamp_min(torch.finfo(part.dtype).tiny)
