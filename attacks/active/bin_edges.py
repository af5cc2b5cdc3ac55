"""Edges of an imprint's bins, chosen so that all bins are equally likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

WHO = "imprint"
SMOOTHED, WIDEST = 4, 0.04
"""Number of bins on either side over which quantiles are averaged, and the largest share of the values."""


def measure(images: Tensor, functional: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return the functional (N,) of pixels in [0, 1] (N, C, H, W), as the model sees them, in float64."""
    return _as_seen(images, mean, std).flatten(1) @ functional


def quantile_edges(values: Tensor, bins: int) -> list[float]:
    """Return the inner edges between bins that hold the same share of the measured values.

    With few measured values per bin, chance would make the bins unequal for other images. So a
    quantile is the mean of the values around its rank, equally many on either side.
    """
    if len(values) < bins:
        raise ValueError(f"{WHO}: quantiles of {bins} bins need at least as many images, got {len(values)}")
    ordered, last = values.double().sort().values, len(values) - 1
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    ranks = (_shares(bins).to(ordered) * last).round().long()
    most = min(SMOOTHED * len(values) // bins, int(WIDEST * len(values)))
    reach = torch.minimum(ranks, last - ranks).clamp_max(most)
    edges = (sums[ranks + reach + 1] - sums[ranks - reach]) / (2 * reach + 1)
    # not compared with 0: sums of equal values round differently
    if not (edges.diff() > 1e-12 * edges.abs().max()).all():
        raise ValueError(f"{WHO}: {bins} bins need as many distinct values; of the images, too many agree")
    return edges.tolist()


def law_edges(law: str, centre: float, spread: float, bins: int) -> list[float]:
    """Return the inner edges between equally likely bins under a law with that mean and deviation."""
    if law not in LAWS:
        raise ValueError(f"{WHO}: the law must be one of {', '.join(LAWS)}; got {law!r}")
    if not (math.isfinite(centre) and math.isfinite(spread) and spread > 0):
        raise ValueError(
            f"{WHO}: a law needs a finite mean and a deviation above 0, got {centre} and {spread}"
        )
    return (centre + spread * LAWS[law](_shares(bins))).tolist()


def lowest_value(
    functional: Tensor, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
) -> float:
    """Return a lower bound of the functional over images with pixels in [0, 1]."""
    ends = [
        _as_seen(torch.full((1, *shape), pixel), mean, std).flatten() * functional for pixel in (0.0, 1.0)
    ]
    least, most = torch.minimum(*ends).sum(), torch.maximum(*ends).sum()
    return float(least - 0.01 * (most - least))


def _as_seen(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    shift, scale = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (images.double() - shift) / scale


def _shares(bins: int) -> Tensor:
    return torch.arange(1, bins, dtype=torch.float64) / bins


def _laplace(shares: Tensor) -> Tensor:
    centred = shares - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs()) / math.sqrt(2)


LAWS: Mapping[str, Callable[[Tensor], Tensor]] = {"normal": torch.special.ndtri, "laplace": _laplace}
"""Quantile functions of laws with mean 0 and deviation 1."""
