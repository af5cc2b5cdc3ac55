"""Pixel errors: mean squared error and peak signal-to-noise ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.metrics.pairs import as_pairs

PSNR_CAP = 120.0
"""Equal images would have an infinite ratio, which JSON cannot hold; float32 pixels end near 150 dB."""


def mse(images: Tensor, truth: Tensor) -> Tensor:
    """Return the mean squared error of each image (N,), in float64."""
    a, b = as_pairs(images, truth, who="mse")
    return (a.double() - b.double()).square().flatten(1).mean(dim=1)


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image (N,) in dB, at most `PSNR_CAP`."""
    floor = 10 ** (-PSNR_CAP / 10)
    return -10 * torch.log10(mse(images, truth).clamp_min(floor))
