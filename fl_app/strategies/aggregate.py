"""The arithmetic of aggregation, without Flower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_app.types import Update


def weighted_mean(updates: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Update:
    """Return ``sum(w_i * u_i) / sum(w_i)``, summed in the order given."""
    total = float(sum(weights))
    if not updates or total <= 0 or len(updates) != len(weights):
        raise ValueError(
            f"weighted_mean: needs as many updates as weights and a positive total, "
            f"got {len(updates)} updates and weights {list(weights)}"
        )
    mean = {name: tensor * (weights[0] / total) for name, tensor in updates[0].items()}
    for update, weight in zip(updates[1:], weights[1:], strict=True):
        for name, tensor in update.items():
            mean[name].add_(tensor, alpha=weight / total)
    return mean


def first_bad_tensor(update: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or infinity, if any does."""
    tensors = [tensor for tensor in update.values() if tensor.numel()]
    # one pass for all: norms are finite unless an entry is not (or its square overflows)
    if not tensors or bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors))).all()):
        return None
    return next((name for name, tensor in update.items() if not torch.isfinite(tensor).all()), None)
