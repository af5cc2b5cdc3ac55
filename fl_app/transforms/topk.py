"""Top-k pruning: keep the largest entries of every layer."""

from __future__ import annotations

from torch import Tensor

from fl_app.sketches.selection import floor_count, keep_only, largest
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace


def keep_topk(k: float) -> Transform:
    """Keep the ``max(1, floor(k * n))`` largest entries of every tensor."""
    if not 0 < k <= 1:
        raise ValueError(f"keep_topk: k must be in (0, 1], got {k}")

    def keep(tensor: Tensor) -> Tensor:
        n = tensor.numel()
        return keep_only(tensor, largest(tensor, min(n, max(1, floor_count(k, n)))))

    return stateless(
        lambda update, ctx: {name: keep(tensor) for name, tensor in update.items()},
        traces=(Trace(withheld="small", kept=k),),
    )
