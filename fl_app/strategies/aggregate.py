"""Arithmetic of aggregation, without Flower."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fl_app.types import Update
from fl_app.wire.messages import EXAMPLES


class RunningSum:
    """Weighted sum of updates, added one at a time: memory for one, for any number of clients."""

    def __init__(self) -> None:
        self.value: Update = {}
        self.weight = 0.0

    def add(self, update: Mapping[str, Tensor], weight: float = 1.0) -> None:
        """Add ``weight`` times the update."""
        if not weight > 0:
            raise ValueError(f"RunningSum: the weight must be positive, got {weight}")
        if self.weight:
            for name, tensor in update.items():
                self.value[name].add_(tensor, alpha=weight)
        else:
            self.value = {name: tensor * weight for name, tensor in update.items()}
        self.weight += weight

    def over(self, divisor: float) -> Update:
        """Return the sum over ``divisor``, computed in place."""
        return {name: tensor.div_(divisor) for name, tensor in self.value.items()}


def undo(before: Update, after: Update, lr: float) -> tuple[Update, Update]:
    """Return ``(before - after) / lr`` and its error bound, since ``after`` was rounded."""
    moved = {name: (weight.double() - after[name].double()) / lr for name, weight in before.items()}
    # twice: scaling rounded the step, and so did the addition
    eps = {name: 2 * torch.finfo(weight.dtype).eps for name, weight in before.items()}
    return moved, {
        name: eps[name] * (after[name].double().abs() / abs(lr) + move.abs()) for name, move in moved.items()
    }


def cast_like(tensors: Update, buffers: Update) -> Update:
    """Return ``tensors`` in the types of ``buffers``; counters are rounded."""

    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return (tensor if dtype.is_floating_point else tensor.round()).to(dtype)

    return {name: cast(tensor, buffers[name].dtype) for name, tensor in tensors.items()}


def largest_of(values: list[float | None]) -> float | None:
    """Return the largest finite, non-negative value; other claims of clients are ignored."""
    return max((value for value in values if value is not None and 0 <= value < math.inf), default=None)


def mean_of(values: list[float | None], weights: list[float]) -> float | None:
    """Return the weighted mean of the known values."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def mean_metrics(told: Mapping[int, Mapping[str, float]], weights: Mapping[int, float]) -> dict[str, float]:
    """Return the weighted means of metrics over the clients that report them, and the sum of their samples.

    More than half of the clients must report a metric: no single one can add a name, or take one away.
    """
    reporting: dict[str, list[int]] = {}
    for client, metrics in told.items():
        for name in metrics:
            reporting.setdefault(name, []).append(client)
    means = {
        name: sum(told[client][name] * weights[client] for client in clients)
        / sum(weights[client] for client in clients)
        for name, clients in sorted(reporting.items())
        if 2 * len(clients) > len(told)
    }
    if EXAMPLES in means:
        means[EXAMPLES] = sum(told[client][EXAMPLES] for client in reporting[EXAMPLES])
    return means
