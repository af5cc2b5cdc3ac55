"""FL-TOP's set T: the coordinates that move most, over the whole vector (Kerkouche et al., UAI 2021, §3.1).

Not per layer: where a model learns is part of what the set says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.sketches.selection import floor_count, largest


def coordinate_count(share: float, n: int) -> int:
    """Return K = ``floor(share * n)`` of the decimal, at least 1.

    The paper's 110.88 KB (Table 1) are 8,316 of 1,663,370 values: it rounds down, too.
    """
    if not 0 < share <= 1:
        raise ValueError(f"coordinate_count: share must be in (0, 1], got {share}")
    return max(1, floor_count(share, n))


def top_coordinates(scores: Tensor, share: float) -> Tensor:
    """Return the coordinates of the K largest scores by magnitude; the lower index wins ties."""
    if scores.ndim != 1:
        raise ValueError(f"top_coordinates: scores must be a vector, got shape {tuple(scores.shape)}")
    return torch.nonzero(largest(scores, coordinate_count(share, len(scores)))).flatten()
