"""Distances of recovered images from the true ones: per image, on pixels in [0, 1]."""

from attacks.metrics.error import mse, psnr
from attacks.metrics.matching import match
from attacks.metrics.perception import lpips
from attacks.metrics.structure import ssim

__all__ = ["lpips", "match", "mse", "psnr", "ssim"]
