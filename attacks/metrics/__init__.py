"""Distances of recovered images from the true ones: per image, on pixels in [0, 1]."""

from attacks.metrics.error import mse, psnr
from attacks.metrics.identification import identifies, registered_psnr
from attacks.metrics.matching import match
from attacks.metrics.perception import lpips
from attacks.metrics.structure import ssim

__all__ = ["identifies", "lpips", "match", "mse", "psnr", "registered_psnr", "ssim"]
