"""Truncated singular values: the largest directions of each layer (SVDefense, Luo et al., 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.transforms.settings import check_finite
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace


def keep_rank(energy: float = 0.5, most: int | None = None) -> Transform:
    """Keep the fewest singular directions of each layer that hold ``energy`` of its squared norm.

    A weight is a matrix of its first dimension by all others; vectors are sent whole. ``most`` bounds the
    rank. As in the paper the rank follows each layer's own spectrum; its weights of channels and of layers,
    which need knowledge of the others' gradients, are left out. The matrices travel whole: the codec sees no
    rank.
    """
    if isinstance(energy, bool) or not 0 < energy <= 1:
        raise ValueError(f"keep_rank: energy must be in (0, 1], got {energy!r}")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise ValueError(f"keep_rank: most must be a whole number of at least 1, got {most!r}")

    def truncate(tensor: Tensor) -> Tensor:
        if tensor.ndim < 2 or tensor.numel() == 0:
            return tensor
        check_finite("keep_rank", tensor)
        left, values, right = torch.linalg.svd(tensor.flatten(1), full_matrices=False)
        held = values.double().square().cumsum(0)
        rank = int((held < energy * held[-1] * (1 - 1e-12)).sum()) + 1
        rank = min(rank, len(values)) if most is None else min(rank, most, len(values))
        kept: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
        return kept.view(tensor.shape)

    return stateless(
        lambda update, ctx: {name: truncate(tensor) for name, tensor in update.items()},
        traces=(Trace(zeros_sent=True),),
    )
