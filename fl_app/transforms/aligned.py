"""Aligned dual gradient pruning: every client prunes to positions named by one of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.sketches.selection import ceil_count, exact, floor_count, keep_only, largest, output_bias
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def prune_aligned(k: float, k1: float, min_size: int = 4) -> Transform:
    """Drop the client's own ``ceil(k1 * n)`` largest entries; keep the largest others at the locations.

    ``max(1, floor(k * n))`` are kept, or all if there are fewer. The locations
    (``ctx.locations``, about ``2 * k * n`` a tensor) come with the order, so
    `prune_aligned` works with the ADGP strategy alone. A tensor with fewer than
    ``min_size`` entries travels whole, except the output layer's bias, which is
    withheld: its largest entry names the label.
    """
    if not (0 < k <= 0.5 and k1 >= 0 and exact(k1) < exact(k)):
        raise ValueError(f"prune_aligned: k must be in (0, 0.5] and k1 in [0, k), got k={k} and k1={k1}")
    if min_size < 0:
        raise ValueError(f"prune_aligned: min_size must be at least 0, got {min_size}")

    def prune(name: str, tensor: Tensor, located: Tensor, secret: str | None) -> Tensor:
        n = tensor.numel()
        if n < min_size:
            return torch.zeros_like(tensor) if name == secret else tensor
        offered = located & ~largest(tensor, ceil_count(k1, n))
        inside = keep_only(tensor, offered)
        count = min(int(offered.sum()), max(1, floor_count(k, n)))
        return keep_only(inside, largest(inside, count))

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        if ctx.locations is None:
            raise ValueError(
                "prune_aligned: the order of this round names no locations; only strategy ADGP sends them"
            )
        secret = output_bias(update) if k1 > 0 else None
        return {
            name: prune(name, tensor, ctx.locations[name].to(tensor.device), secret)
            for name, tensor in update.items()
        }

    return stateless(rewrite, located=float(2 * exact(k)), traces=(Trace(withheld="extreme"),))
