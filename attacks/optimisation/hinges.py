"""What entries that were not sent still tell: they were too small to be sent, or too large.

A pruned entry is not unknown. Top-k leaves out what is below the smallest entry that it
sends; dual pruning leaves out what is below the smallest or above the largest. A
guess whose gradient breaks that rule is not the client's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.optimisation.objectives import Distance, Matching


def hinged(base: Matching, sizes: Sequence[int], *, two_sided: bool, weight: float) -> Matching:
    """Add ``weight`` times the squares by which unsent entries break the rule, relative to what was sent.

    ``sizes`` are the numbers of entries of the tensors, which are pruned each by
    itself. ``two_sided``: an entry may be missing for being above the largest sent one,
    too. Distances such as the cosine do not know the scale of the gradient; the rule
    is applied at the scale that fits the sent entries best.
    """

    def matching(target: Tensor, sent: Tensor | None) -> Distance:
        distance = base(target, sent)
        if sent is None:
            return distance
        low, high = _bounds(target, sent, sizes)
        power = (target * sent).square().sum(dim=1).clamp_min(torch.finfo(target.dtype).tiny)

        def with_hinges(gradient: Tensor) -> Tensor:
            size = (_fitting_scale(gradient, target, sent) * gradient).abs()
            excess = (size - low).clamp_min(0)
            if two_sided:
                excess = torch.minimum(excess, (high - size).clamp_min(0))
            return distance(gradient) + weight * (excess * ~sent).square().sum(dim=1) / power

        return with_hinges

    return matching


def _bounds(target: Tensor, sent: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest sent magnitude of each entry's own tensor; of none, no bound."""
    lows, highs = [], []
    for values, mask in zip(target.abs().split(sizes, dim=1), sent.split(sizes, dim=1), strict=True):
        low = values.masked_fill(~mask, torch.inf).amin(dim=1, keepdim=True)
        high = values.masked_fill(~mask, 0.0).amax(dim=1, keepdim=True)
        lows.append(low.expand_as(values))
        highs.append(high.expand_as(values))
    return torch.cat(lows, dim=1), torch.cat(highs, dim=1)


def _fitting_scale(gradient: Tensor, target: Tensor, sent: Tensor) -> Tensor:
    seen = gradient * sent
    power = seen.square().sum(dim=1, keepdim=True)
    fit = (seen * target).sum(dim=1, keepdim=True) / power.clamp_min(torch.finfo(target.dtype).tiny)
    return fit.clamp_min(0)
