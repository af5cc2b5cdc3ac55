"""Robust means that a minority of liars cannot steer, without Flower: functions of all updates of a round.

None is safe without assumptions about data: a rule that withstands liars also drops honest clients whose data
differ. ``withstand`` is the share of clients that may lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch
from torch import Tensor

from fl_app.types import Update

Rule = Callable[[Sequence[Update], Sequence[float]], Update]
"""``rule(updates, weights)`` returns the replacement of the weighted mean."""

RULES = ("mean", "median", "trimmed", "krum", "norm_bounded")


def rule_of(name: str, withstand: float = 0.2) -> Rule | None:
    """Return a rule by its name; None for the plain mean, which needs only one update at a time."""
    if name not in RULES:
        raise ValueError(f"aggregate: must be one of {', '.join(RULES)}; got {name!r}")
    if not 0 <= withstand < 0.5:
        raise ValueError(f"withstand: must be at least 0 and below 0.5, got {withstand}")
    rules: dict[str, Rule] = {
        "median": lambda updates, weights: take_median(updates),
        "trimmed": lambda updates, weights: take_trimmed_mean(updates, liars(len(updates), withstand)),
        "krum": lambda updates, weights: take_krum(updates, liars(len(updates), withstand)),
        "norm_bounded": take_norm_bounded,
    }
    return rules.get(name)


def liars(clients: int, share: float) -> int:
    """Return a share of the clients as a number, rounded up, but always less than half."""
    return min(math.ceil(share * clients - 1e-9), (clients - 1) // 2)


def take_median(updates: Sequence[Update]) -> Update:
    """Return the median of every entry (Yin et al., ICML 2018); the mean of both middle ones if even."""
    middle = (len(updates) - 1) // 2, len(updates) // 2

    def of(ordered: Tensor) -> Tensor:
        return (ordered[middle[0]] + ordered[middle[1]]) / 2

    return {name: of(_stack(updates, name).sort(0).values) for name in updates[0]}


def take_trimmed_mean(updates: Sequence[Update], cut: int) -> Update:
    """Return the mean of every entry without its ``cut`` largest and smallest values (Yin et al.)."""
    if not 0 <= 2 * cut < len(updates):
        raise ValueError(f"take_trimmed_mean: cannot cut {cut} of {len(updates)} at both ends")
    return {
        name: _stack(updates, name).sort(0).values[cut : len(updates) - cut].mean(0) for name in updates[0]
    }


def take_krum(updates: Sequence[Update], liars: int) -> Update:
    """Return the update closest to its ``n - liars - 2`` nearest ones (Blanchard et al., NeurIPS 2017)."""
    flat = torch.stack([torch.cat([t.double().reshape(-1) for t in update.values()]) for update in updates])
    neighbours = max(1, len(updates) - liars - 2)
    if len(updates) == 1:
        return dict(updates[0])
    distances = torch.cdist(flat, flat).square()
    distances.fill_diagonal_(math.inf)
    scores = distances.sort(1).values[:, :neighbours].sum(1)
    return dict(updates[int(scores.argmin())])


def take_norm_bounded(updates: Sequence[Update], weights: Sequence[float]) -> Update:
    """Return the weighted mean of updates, each scaled down to the median of their norms if it is longer."""
    norms = [_norm(update) for update in updates]
    bound, total = median(norms), sum(weights)
    scales = [
        weight / total * (min(1.0, bound / norm) if norm else 1.0)
        for norm, weight in zip(norms, weights, strict=True)
    ]
    return {
        name: sum(
            (update[name] * scale for update, scale in zip(updates, scales, strict=True)), start=0.0 * first
        )
        for name, first in updates[0].items()
    }


def _norm(update: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in update.values()))


def _stack(updates: Sequence[Update], name: str) -> Tensor:
    return torch.stack([update[name] for update in updates])
