"""A defense of one's own: no entry of an update stands out."""

from __future__ import annotations

import math

from torch import Tensor

from fl_app.transforms import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def clip_largest(keep: float) -> Transform:
    """Clip every tensor to the magnitude that the share ``keep`` of its entries does not pass."""
    if not 0 < keep <= 1:
        raise ValueError(f"clip_largest: keep must be in (0, 1], got {keep}")

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        return {name: _clip(tensor, keep) for name, tensor in update.items()}

    # nothing is withheld: a zero is a zero of the client's gradient, and adaptive attacks match it
    return stateless(rewrite, traces=(Trace(zeros_sent=True),))


def _clip(tensor: Tensor, keep: float) -> Tensor:
    magnitudes = tensor.abs().flatten()
    bound = float(magnitudes.kthvalue(max(1, math.floor(keep * len(magnitudes)))).values)
    return tensor.clamp(-bound, bound)
