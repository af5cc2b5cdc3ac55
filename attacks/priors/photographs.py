"""Gaussian law of public photographs: an image is a mean plus independent standard normal codes.

Neighbouring pixels of photographs are alike, and more so in some directions and colours than in others.
The law's principal directions say how much: a penalty on codes knows more than one on differences of
neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

DIRECTIONS = 1024
"""Maximum number of principal directions; 1,024 hold over 99.9 % of the variance of 32 × 32 photographs."""
FEWEST = 16
"""Images that a law is learnt from, at least."""
MOST = 4096
"""Images that a law of larger ones is learnt from, at most: their products must fit into memory."""
_SMALL = 1024
_NOTHING = 1e-6
"""Share of the largest variance below which a direction is rounding."""


@dataclass(frozen=True, eq=False)
class Photographs:
    """Gaussian law of images of one shape; codes of an image are independent and standard normal."""

    mean: Tensor
    """(C * H * W,)"""
    basis: Tensor
    """Principal directions, scaled by their deviations (k, C * H * W)."""
    shape: tuple[int, ...]
    learnt_from: int
    """Number of public images."""

    def pixels(self, codes: Tensor) -> Tensor:
        """Return the images (..., C, H, W) of ``codes`` (..., k); they may leave [0, 1]."""
        return (self.mean.to(codes) + codes @ self.basis.to(codes)).view(*codes.shape[:-1], *self.shape)

    def codes(self, pixels: Tensor) -> Tensor:
        """Return the codes of the nearest images of the law."""
        flat = pixels.flatten(-len(self.shape)) - self.mean.to(pixels)
        basis = self.basis.to(pixels)
        return flat @ (basis / basis.square().sum(dim=1, keepdim=True)).t()


_KNOWN: WeakIdKeyDictionary = WeakIdKeyDictionary()


def law_of(images: Tensor) -> Photographs:
    """Return the law of public ``images`` (N, C, H, W) in [0, 1] and their mirror images.

    The law of the same tensor is learnt once.
    """
    if images.ndim != 4 or len(images) < FEWEST:
        raise ValueError(f"law_of: expected at least {FEWEST} images (N, C, H, W), got {tuple(images.shape)}")
    if images not in _KNOWN:
        _KNOWN[images] = _learnt(images)
    law: Photographs = _KNOWN[images]
    return law


def _learnt(images: Tensor) -> Photographs:
    size = images[0].numel()
    chosen = images if 2 * len(images) >= size else images[:MOST]
    flat = torch.cat([chosen, chosen.flip(-1)]).flatten(1)
    # float32 is precise enough for the directions of many pixels, and several times faster
    flat = flat.double() if min(flat.shape) < _SMALL else flat.float()
    mean = flat.mean(dim=0)
    flat -= mean
    if len(flat) >= size:
        variances, directions = torch.linalg.eigh(flat.t() @ flat / len(flat))
        variances, directions = variances.flip(0), directions.t().flip(0)
    else:
        # fewer images than pixels: the products of images have the same nonzero eigenvalues
        squares, mixtures = torch.linalg.eigh(flat @ flat.t())
        squares, mixtures = squares.flip(0), mixtures.t().flip(0)
        variances = squares / len(flat)
        directions = (mixtures @ flat) / squares.clamp_min(torch.finfo(flat.dtype).tiny).sqrt()[:, None]
    count = min(DIRECTIONS, int((variances > _NOTHING * variances[0]).sum()))
    basis = directions[:count] * variances[:count, None].sqrt()
    return Photographs(mean.float(), basis.float(), tuple(images.shape[1:]), len(images))
