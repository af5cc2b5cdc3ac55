"""Magnitude pruning: drop the smallest entries of every layer.

GradDrop (Aji and Heafield, EMNLP 2017) and the pruning of "Deep Leakage from
Gradients" (Zhu et al., NeurIPS 2019, §5.2) are this one rule at different rates.
"""

from __future__ import annotations

from torch import Tensor

from fl_app.sketches.selection import floor_count, keep_only, largest
from fl_app.transforms.settings import check_rate
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace


def drop_smallest(rate: float) -> Transform:
    """Drop the ``floor(rate * n)`` smallest entries of every tensor."""
    check_rate("drop_smallest", "rate", rate)
    return stateless(
        lambda update, ctx: {name: without_smallest(tensor, rate) for name, tensor in update.items()},
        traces=(Trace(withheld="small", kept=1 - rate),),
    )


def without_smallest(tensor: Tensor, rate: float) -> Tensor:
    """Return ``tensor`` with exactly 0.0 at its ``floor(rate * n)`` smallest entries."""
    n = tensor.numel()
    return keep_only(tensor, largest(tensor, n - floor_count(rate, n)))
