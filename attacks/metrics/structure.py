"""Structural similarity (Wang et al. 2004) with the Gaussian window of the paper.

Only windows that lie wholly inside the image count, and the covariance is the
population's, which is what scikit-image computes with ``gaussian_weights=True``
and ``use_sample_covariance=False``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.metrics.pairs import as_pairs

WINDOW = 11
SIGMA = 1.5
C1 = 0.01**2
C2 = 0.03**2


def ssim(images: Tensor, truth: Tensor) -> Tensor:
    """Return the mean structural similarity of each image (N,), in float64.

    Images with a side below eleven pixels get the largest odd window that fits.
    """
    a, b = (stack.double() for stack in as_pairs(images, truth, who="ssim"))
    window = _gaussian(_fitting_window(min(a.shape[-2:])), a)
    mean_a, mean_b = _blur(a, window), _blur(b, window)
    var_a = _blur(a * a, window) - mean_a**2
    var_b = _blur(b * b, window) - mean_b**2
    cov = _blur(a * b, window) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + C1) / (mean_a**2 + mean_b**2 + C1)
    structure = (2 * cov + C2) / (var_a + var_b + C2)
    return (luminance * structure).flatten(1).mean(dim=1)


def _fitting_window(side: int) -> int:
    return min(WINDOW, side if side % 2 else side - 1)


def _gaussian(size: int, like: Tensor) -> Tensor:
    offsets = torch.arange(size, dtype=like.dtype, device=like.device) - size // 2
    weights = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    return weights / weights.sum()


def _blur(stack: Tensor, window: Tensor) -> Tensor:
    channels, size = stack.shape[1], window.numel()
    rows = window.view(1, 1, size, 1).expand(channels, 1, size, 1)
    columns = window.view(1, 1, 1, size).expand(channels, 1, 1, size)
    return F.conv2d(F.conv2d(stack, rows, groups=channels), columns, groups=channels)
