"""Dual gradient pruning (Xue et al., AAAI 2024, Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.sketches.selection import between, ceil_count, exact, floor_count, keep_only, output_bias
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def prune_dual(k1: float, k2: float, min_size: int = 4) -> Transform:
    """Drop the ``ceil(k1 * n)`` largest and the ``floor(k2 * n)`` smallest entries of every tensor.

    The top is rounded up because a 10-entry bias with ``floor(0.05 * 10) = 0``
    would keep its largest entry, which is exactly the one that names the label.
    A tensor with fewer than ``min_size`` entries travels whole, except the output
    layer's bias, which is then withheld for the same reason.
    """
    if not (0 <= k1 < 1 and 0 <= k2 < 1 and exact(k1) + exact(k2) < 1):
        raise ValueError(f"prune_dual: k1 and k2 must be in [0, 1) with k1 + k2 < 1, got {k1} and {k2}")
    if min_size < 0:
        raise ValueError(f"prune_dual: min_size must be at least 0, got {min_size}")

    def prune(name: str, tensor: Tensor, secret: str | None) -> Tensor:
        n = tensor.numel()
        if n < min_size:
            return torch.zeros_like(tensor) if name == secret else tensor
        return keep_only(tensor, between(tensor, top=ceil_count(k1, n), bottom=floor_count(k2, n)))

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        secret = output_bias(update) if k1 > 0 else None
        return {name: prune(name, tensor, secret) for name, tensor in update.items()}

    return stateless(rewrite, traces=(Trace(withheld="extreme"),))
