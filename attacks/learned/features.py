"""Features of an update for a learned attacker: every tensor at unit length, long ones sketched."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_app.types import Update


def features_of(updates: list[Update], names: tuple[str, ...], width: int, seed: int) -> Tensor:
    """Return one row for each update (N, …), in which each tensor has the same weight.

    A tensor of more than ``width`` entries becomes that many signed sums of its entries (a count sketch),
    which keeps inner products up to an error of ``1 / sqrt(width)``.
    """
    columns = []
    for name in names:
        rows = torch.stack([update[name].detach().cpu().flatten().float() for update in updates])
        if rows.shape[1] > width:
            rows = _sketched(rows, width, seed)
        columns.append(F.normalize(rows, dim=1))
    joined: Tensor = torch.cat(columns, dim=1) / len(names) ** 0.5
    return joined


def _sketched(rows: Tensor, width: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    buckets = torch.randint(width, (rows.shape[1],), generator=generator)
    signs = torch.randint(2, (rows.shape[1],), generator=generator).to(rows) * 2 - 1
    sums: Tensor = rows.new_zeros(len(rows), width).index_add_(1, buckets, rows * signs)
    return sums
