"""Selection of the largest coordinates of a tensor: exact counts, one ranking, ties to the lower index.

Both ends share this: a client selects what it sends, a server what it broadcasts.
Every selection is a boolean mask cut from one ranking of the entries: larger
magnitude first, and among equals the lower index first. So every count is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_MANY = 8192  # from here on a histogram is faster than a partial sort


@lru_cache(maxsize=256)
def exact(fraction: float) -> Fraction:
    """Return the decimal that was written: ``0.7`` is 7/10, not the nearest double.

    ``floor(0.7 * 90)`` is 62 in doubles and 63 in decimals.
    """
    return Fraction(str(fraction))


def floor_count(fraction: float, n: int) -> int:
    """Return ``floor(fraction * n)`` of the decimal."""
    return math.floor(exact(fraction) * n)


def ceil_count(fraction: float, n: int) -> int:
    """Return ``ceil(fraction * n)`` of the decimal."""
    return math.ceil(exact(fraction) * n)


def largest(tensor: Tensor, count: int) -> Tensor:
    """Return a mask of the ``count`` entries that rank first by magnitude."""
    if not 0 <= count <= tensor.numel():
        raise ValueError(f"largest: count must be in [0, {tensor.numel()}], got {count}")
    (mask,) = _first(_magnitudes(tensor), count)
    return mask.view(tensor.shape)


def between(tensor: Tensor, *, top: int, bottom: int) -> Tensor:
    """Return a mask of what remains when the first ``top`` and the last ``bottom`` ranks go."""
    n = tensor.numel()
    if top < 0 or bottom < 0 or top + bottom > n:
        raise ValueError(f"between: top + bottom must be in [0, {n}], got {top} + {bottom}")
    kept, cut = _first(_magnitudes(tensor), n - bottom, top)
    return (kept & ~cut).view(tensor.shape)


def location_counts(shapes: Mapping[str, Tensor], share: float, min_size: int) -> dict[str, int]:
    """Return how many positions of every tensor a broadcast of ``share`` of them names.

    A tensor with fewer than ``min_size`` entries is named whole.
    """
    return {
        name: n if (n := tensor.numel()) < min_size else min(n, max(1, floor_count(share, n)))
        for name, tensor in shapes.items()
    }


def keep_only(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return ``tensor`` with exactly 0.0 outside ``mask``."""
    # not a product: -1 * False is -0.0, and inf * False is NaN
    return tensor.masked_fill(~mask, 0.0)


def output_bias(shapes: Mapping[str, Tensor]) -> str | None:
    """Return the name of the output layer's bias, if the update ends with one.

    The output layer comes last in every model here, and its bias after its weight.
    """
    name = list(shapes)[-1] if shapes else None
    return name if name is not None and name.endswith("bias") and shapes[name].ndim == 1 else None


def _magnitudes(tensor: Tensor) -> Tensor:
    magnitudes = tensor.detach().abs().flatten()
    if torch.isnan(magnitudes).any():
        raise ValueError(f"selection: a tensor of shape {tuple(tensor.shape)} holds NaN and has no ranking")
    return magnitudes


def _first(magnitudes: Tensor, *counts: int) -> list[Tensor]:
    """Return a mask of the first ``count`` ranks for each of ``counts``, in linear time."""
    n = magnitudes.numel()
    ranks = [n - count for count in counts if 0 < count < n]
    thresholds = iter(_smallest(magnitudes, ranks))
    return [
        _above(magnitudes, next(thresholds), count)
        if 0 < count < n
        else torch.full((n,), count > 0, dtype=torch.bool, device=magnitudes.device)
        for count in counts
    ]


def _above(magnitudes: Tensor, threshold: float, count: int) -> Tensor:
    """Return a mask of what exceeds ``threshold``, filled up to ``count`` with its first equals."""
    mask = magnitudes >= threshold
    if excess := int(mask.sum()) - count:
        # by index, not by threshold: ties would keep more than `count`
        ties = torch.nonzero(magnitudes == threshold).flatten()
        mask[ties[len(ties) - excess :]] = False
    return mask


def _smallest(magnitudes: Tensor, ranks: list[int]) -> list[float]:
    """Return the values that a rising sort would have at ``ranks``."""
    if not ranks:
        return []
    if magnitudes.dtype == torch.float32 and magnitudes.device.type == "cpu":
        values = magnitudes.numpy()
        found = np.partition(values, ranks)[ranks] if values.size < _MANY else _by_buckets(values, ranks)
        return [float(value) for value in found]
    return [float(torch.kthvalue(magnitudes, rank + 1).values) for rank in ranks]


def _by_buckets(magnitudes: np.ndarray, ranks: list[int]) -> list[np.float32]:
    """Return the values at ``ranks`` by a histogram over the upper halves of the bit patterns.

    Patterns of floats without a sign rise with their values, so that only the bucket of a rank is searched.
    """
    upper = magnitudes.view(np.uint32) >> 16
    ends = np.cumsum(np.bincount(upper, minlength=1))
    found = []
    for rank in ranks:
        bucket = int(np.searchsorted(ends, rank, side="right"))
        inside = magnitudes[upper == bucket]
        within = rank - int(ends[bucket] - len(inside))
        found.append(np.partition(inside, within)[within])
    return found
