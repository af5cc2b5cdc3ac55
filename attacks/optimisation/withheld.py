"""Bounds on entries that were not sent: they were too small to be sent, or too large.

A pruned entry is not unknown. Top-k drops entries below the smallest that it sends; dual pruning drops
entries below the smallest or above the largest. A guess whose gradient breaks that rule is not the
client's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.knowledge import gradient_unit, pruning_of, travelled
from attacks.optimisation.objectives import Distance
from fl_app.types import Observation, Trace


class Withheld(NamedTuple):
    """Bounds on an unsent entry: its size does not lie between them."""

    low: Tensor
    """The entry is not larger than this, infinity where nothing is known …"""
    high: Tensor
    """… or not smaller than this, infinity where only small ones were withheld."""


def withheld_entries(obs: Observation, names: tuple[str, ...]) -> Withheld | None:
    """Return the bounds that the pruning rule puts on unsent entries; None where there is no rule.

    The rule holds for what was pruned; with error feedback that is a gradient in the first round alone.
    Of several local steps the bounds are those of their mean gradient.
    """
    rule = pruning_of(obs)
    if rule is None:
        return None
    bounds = [_bounds(obs, name, rule) for name in names]
    unit = gradient_unit(obs)
    return Withheld(*(torch.cat(side) / unit for side in zip(*bounds, strict=True)))


def _bounds(obs: Observation, name: str, rule: Trace) -> tuple[Tensor, Tensor]:
    sizes = obs.update[name].detach().abs().flatten()
    sent = travelled(obs, name).flatten()
    low, high = torch.full_like(sizes, torch.inf), torch.full_like(sizes, torch.inf)
    if not sent.any():
        return low, high
    ruled = ~sent
    if obs.locations is not None:
        ruled &= obs.locations[name].flatten().to(sizes.device)
    low[ruled] = sizes[sent].min()
    if rule.withheld == "extreme":
        high[ruled] = sizes[sent].max()
    return low, high


def with_withheld(
    distance: Distance, target: Tensor, sent: Tensor, withheld: Withheld, weight: float
) -> Distance:
    """Add ``weight`` times the squares by which unsent entries break the rule, relative to what was sent.

    Distances such as the cosine do not know the scale of the gradient; the rule
    is applied at the scale that fits the sent entries best.
    """
    power = (target * sent).square().sum(dim=1).clamp_min(torch.finfo(target.dtype).tiny)

    def with_rule(gradient: Tensor) -> Tensor:
        size = (_fitting_scale(gradient, target, sent) * gradient).abs()
        # what is between the bounds breaks the rule, by its way to the nearer one
        excess = torch.minimum((size - withheld.low).clamp_min(0), (withheld.high - size).clamp_min(0))
        return distance(gradient) + weight * (excess * ~sent).square().sum(dim=1) / power

    return with_rule


def _fitting_scale(gradient: Tensor, target: Tensor, sent: Tensor) -> Tensor:
    seen = gradient * sent
    power = seen.square().sum(dim=1, keepdim=True)
    fit = (seen * target).sum(dim=1, keepdim=True) / power.clamp_min(torch.finfo(target.dtype).tiny)
    return fit.clamp_min(0)
