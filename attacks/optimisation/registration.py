"""Registration of images to a common one by small translations, found by cross-correlation."""

from __future__ import annotations

import torch
from torch import Tensor

MARGIN = 0.15
"""An image is moved only if that takes this share off its difference: noise must not be moved about."""


def registered_mean(images: Tensor, reach: int) -> Tensor:
    """Return the mean of ``images`` (R, ..., C, H, W) over R, each first registered to their plain mean.

    A pixel that a moved image does not cover is averaged over the others.
    """
    plain = images.mean(dim=0)
    aligned, covered = translate(images, find_shifts(images, plain, reach))
    count = covered.sum(dim=0)
    return torch.where(count > 0, (aligned * covered).sum(dim=0) / count.clamp_min(1), plain)


def find_shifts(images: Tensor, reference: Tensor, reach: int) -> Tensor:
    """Return whole pixels (..., 2), down and right, at which (..., C, H, W) images show the reference.

    ``images[y + down, x + right]`` is then closest to ``reference[y, x]`` in the mean of
    squares over what both cover; no more than ``reach`` pixels either way are tried, nor
    so many that less than half of a side is left to compare.
    """
    height, width = images.shape[-2:]
    tall, wide = min(reach, height // 2), min(reach, width // 2)
    # differences do not know the level, but their expanded squares round worse far from zero
    level = reference.mean(dim=(-3, -2, -1), keepdim=True)
    moving, fixed = images - level, (reference - level).expand_as(images)
    ones = torch.ones_like(fixed)
    overlap = _correlate(ones, ones, tall, wide).round()
    squares = _correlate(moving.square(), ones, tall, wide) + _correlate(ones, fixed.square(), tall, wide)
    difference = (squares - 2 * _correlate(moving, fixed, tall, wide)) / overlap
    least, index = difference.flatten(-2).min(dim=-1)
    unmoved = difference[..., tall, wide]
    columns = 2 * wide + 1
    shifts = torch.stack([index // columns - tall, index % columns - wide], dim=-1)
    return torch.where((least < (1 - MARGIN) * unmoved).unsqueeze(-1), shifts, 0)


def translate(images: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``images[y + down, x + right]`` and where that is inside, as 0 and 1; nothing wraps around."""
    height, width = images.shape[-2:]
    down = torch.arange(height, device=images.device) + shifts[..., :1]
    right = torch.arange(width, device=images.device) + shifts[..., 1:]
    inside = _inside(down, height).unsqueeze(-1) & _inside(right, width).unsqueeze(-2)
    rows = down.clamp(0, height - 1)[..., None, :, None].expand(images.shape)
    columns = right.clamp(0, width - 1)[..., None, None, :].expand(images.shape)
    moved = images.gather(-2, rows).gather(-1, columns)
    return moved, inside.unsqueeze(-3).to(images.dtype)


def _correlate(moving: Tensor, fixed: Tensor, tall: int, wide: int) -> Tensor:
    """Return the sums of ``moving[y + d] * fixed[y]`` over channels and pixels, for each shift d in reach."""
    # padded by the reach, so that what wraps around meets zeros
    size = (moving.shape[-2] + tall, moving.shape[-1] + wide)
    product = torch.fft.rfft2(moving, s=size) * torch.fft.rfft2(fixed, s=size).conj()
    sums: Tensor = torch.fft.irfft2(product.sum(dim=-3), s=size)
    return sums.roll((tall, wide), dims=(-2, -1))[..., : 2 * tall + 1, : 2 * wide + 1]


def _inside(positions: Tensor, size: int) -> Tensor:
    return (positions >= 0) & (positions < size)
