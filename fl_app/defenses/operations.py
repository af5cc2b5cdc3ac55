"""Library of image operations for the policies of `ats`.

These are the operations of AutoAugment (Cubuk et al., CVPR 2019), on which Gao et al.
(CVPR 2021) build, for batches of tensors. Theirs have a probability and a random
sign; ours are deterministic, so that a policy is scored on exactly the images that it
trains on. Geometric operations fill with grey, as AutoAugment does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

GREY = 0.5
LUMINANCE = (0.299, 0.587, 0.114)
"""Brightness of red, green and blue (ITU-R BT.601)."""


@dataclass(frozen=True)
class Operation:
    """One entry of the library: pixels (N, C, H, W) in [0, 1] in, pixels of the same form out."""

    function: Callable[..., Tensor]
    magnitude: float | None = None

    def __call__(self, pixels: Tensor) -> Tensor:
        changed = self.function(pixels) if self.magnitude is None else self.function(pixels, self.magnitude)
        return changed.clamp(0, 1)

    def __str__(self) -> str:
        name = self.function.__name__
        return name if self.magnitude is None else f"{name} {self.magnitude:g}"


def follow(policy: Sequence[int], pixels: Tensor) -> Tensor:
    """Apply the entries of the library that ``policy`` numbers, in its order."""
    for number in policy:
        pixels = LIBRARY[number](pixels)
    return pixels


def shear_x(pixels: Tensor, slope: float) -> Tensor:
    """Move rows below the middle to the left by ``slope`` pixels a row, and rows above it to the right."""
    return _warp(pixels, ((1, slope), (0, 1)))


def shear_y(pixels: Tensor, slope: float) -> Tensor:
    """Move columns right of the middle up by ``slope`` pixels a column, and columns left of it down."""
    return _warp(pixels, ((1, 0), (slope, 1)))


def rotate(pixels: Tensor, degrees: float) -> Tensor:
    """Turn counterclockwise about the middle."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return _warp(pixels, ((cos, -sin), (sin, cos)))


def translate_x(pixels: Tensor, share: float) -> Tensor:
    """Move to the right by a share of the width, rounded to whole pixels."""
    return _shift(pixels, round(share * pixels.shape[-1]), dim=-1)


def translate_y(pixels: Tensor, share: float) -> Tensor:
    """Move down by a share of the height, rounded to whole pixels."""
    return _shift(pixels, round(share * pixels.shape[-2]), dim=-2)


def brightness(pixels: Tensor, factor: float) -> Tensor:
    """Scale towards black (0) or away from it (above 1)."""
    return factor * pixels


def contrast(pixels: Tensor, factor: float) -> Tensor:
    """Move towards the image's mean grey (0) or away from it (above 1)."""
    return torch.lerp(_grey(pixels).mean(dim=(-2, -1), keepdim=True).expand_as(pixels), pixels, factor)


def colour(pixels: Tensor, factor: float) -> Tensor:
    """Move towards the grey image (0) or away from it (above 1); a grey image stays as it is."""
    return torch.lerp(_grey(pixels).expand_as(pixels), pixels, factor)


def sharpness(pixels: Tensor, factor: float) -> Tensor:
    """Move towards a smoothed image (0) or away from it (above 1)."""
    kernel = torch.ones(1, 1, 3, 3, dtype=pixels.dtype, device=pixels.device)
    kernel[..., 1, 1] = 5
    # channel by channel; edges are repeated, so that any size works
    planes = F.pad(pixels.flatten(0, 1).unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    return torch.lerp(F.conv2d(planes, kernel / kernel.sum()).view_as(pixels), pixels, factor)


def posterize(pixels: Tensor, bits: float) -> Tensor:
    """Keep the upper ``bits`` of the eight bits of every byte."""
    step = 2 ** (8 - int(bits))
    kept = _levels(pixels).div(step, rounding_mode="floor").mul(step).to(pixels.dtype) / 255
    return _with_slope_of(pixels, kept)


def solarize(pixels: Tensor, threshold: float) -> Tensor:
    """Invert the pixels from ``threshold`` on."""
    return torch.where(pixels < threshold, pixels, 1 - pixels)


def invert(pixels: Tensor) -> Tensor:
    """Turn black into white and white into black."""
    return 1 - pixels


def autocontrast(pixels: Tensor) -> Tensor:
    """Stretch every channel to the whole range from 0 to 1; a constant channel stays as it is."""
    low, high = pixels.amin(dim=(-2, -1), keepdim=True), pixels.amax(dim=(-2, -1), keepdim=True)
    width = high - low
    return torch.where(width > 0, (pixels - low) / torch.where(width > 0, width, 1), pixels)


def equalize(pixels: Tensor) -> Tensor:
    """Spread every channel's 256 levels so that their ranks are even; a constant channel stays as it is."""
    levels = _levels(pixels).flatten(2)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.int64, device=pixels.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    up_to = histogram.cumsum(dim=2).gather(2, levels).view(pixels.shape)
    lowest = up_to.amin(dim=(-2, -1), keepdim=True)
    above = up_to.amax(dim=(-2, -1), keepdim=True) - lowest
    spread = (up_to - lowest).to(pixels.dtype) / above.clamp(min=1)
    return torch.where(above > 0, _with_slope_of(pixels, spread), pixels)


_MAGNITUDES: dict[Callable[..., Tensor], tuple[float | None, ...]] = {
    shear_x: (-0.3, -0.15, 0.15, 0.3),
    shear_y: (-0.3, -0.15, 0.15, 0.3),
    translate_x: (-0.375, -0.25, -0.125, 0.125, 0.25, 0.375),
    translate_y: (-0.375, -0.25, -0.125, 0.125, 0.25, 0.375),
    rotate: (-30, -15, 15, 30),
    brightness: (0.3, 0.6, 1.4, 1.8),
    contrast: (0.3, 0.6, 1.4, 1.8),
    colour: (0, 0.5, 1.5, 1.9),
    sharpness: (0, 0.5, 1.5, 1.9),
    posterize: (2, 3, 4, 5),
    solarize: (0.25, 0.5, 0.75),
    invert: (None,),
    autocontrast: (None,),
    equalize: (None,),
}

LIBRARY: tuple[Operation, ...] = tuple(
    Operation(function, magnitude) for function, magnitudes in _MAGNITUDES.items() for magnitude in magnitudes
)
"""Policies index into this tuple: append new entries at its end, or policies change meaning."""


def _warp(pixels: Tensor, matrix: tuple[tuple[float, float], tuple[float, float]]) -> Tensor:
    """Fetch each pixel from ``matrix`` times its (x, y), in pixels from the middle of the image."""
    (xx, xy), (yx, yy) = matrix
    height, width = pixels.shape[-2:]
    # torch's coordinates go from -1 to 1 along both sides, whatever their lengths
    theta = [[xx, xy * height / width, 0], [yx * width / height, yy, 0]]
    affine = torch.tensor(theta, dtype=pixels.dtype, device=pixels.device).expand(len(pixels), 2, 3)
    grid = F.affine_grid(affine, list(pixels.shape), align_corners=False)
    # outside the image is 0: grey becomes 0 and comes back
    return F.grid_sample(pixels - GREY, grid, padding_mode="zeros", align_corners=False) + GREY


def _shift(pixels: Tensor, by: int, dim: int) -> Tensor:
    size = pixels.shape[dim]
    kept = max(0, size - abs(by))
    shifted = torch.full_like(pixels, GREY)
    shifted.narrow(dim, min(size, max(0, by)), kept).copy_(pixels.narrow(dim, min(size, max(0, -by)), kept))
    return shifted


def _grey(pixels: Tensor) -> Tensor:
    """Return the perceived brightness of each pixel, as one channel."""
    if pixels.shape[1] != len(LUMINANCE):
        return pixels.mean(dim=1, keepdim=True)
    weights = torch.tensor(LUMINANCE, dtype=pixels.dtype, device=pixels.device)
    return (pixels * weights.view(1, -1, 1, 1)).sum(dim=1, keepdim=True)


def _with_slope_of(pixels: Tensor, changed: Tensor) -> Tensor:
    """Return ``changed`` to the bit, differentiated as if it were ``pixels``.

    A step function has slope 0, which would stop a search for the pixels by gradients.
    """
    return (pixels - pixels.detach()) + changed


def _levels(pixels: Tensor) -> Tensor:
    return (pixels * 255).round().long()
