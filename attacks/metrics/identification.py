"""Identification: is a rebuilt image closest to the right one among candidates (breaching's IIP)?

Images are compared by their correlation at the best shift, plain or mirrored, so that neither brightness and
contrast nor a reconstruction that slid aside hide a picture that anybody would recognise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def identifies(images: Tensor, truth: Tensor, others: Tensor) -> list[bool]:
    """Return for each image (N, C, H, W) whether its own truth is closer to it than all ``others``.

    Ties are no identification: a flat image is as close to everybody.
    """
    if not len(images):
        return []
    own = [
        float(peak_correlation(image, one.unsqueeze(0))[0]) for image, one in zip(images, truth, strict=True)
    ]
    rest = [_best_of_others(image, one, others) for image, one in zip(images, truth, strict=True)]
    return [mine > best for mine, best in zip(own, rest, strict=True)]


def registered_psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR of each image after the circular shift, and the mirroring, that suit it best (N,)."""
    size = images[0].numel() if len(images) else 1
    found = []
    for image, one in zip(images.double(), truth.double(), strict=True):
        overlap = _cross(image, one.unsqueeze(0)).amax(dim=(1, 2, 3))[0]
        error = (image.square().sum() + one.square().sum() - 2 * overlap).clamp_min(0) / size
        found.append(-10 * torch.log10(error.clamp_min(1e-12)))
    return torch.stack(found) if found else torch.zeros(0)


def peak_correlation(image: Tensor, candidates: Tensor) -> Tensor:
    """Return the largest correlation of an image with each candidate (M,) over shifts, plain or mirrored."""
    centred = image.double() - image.double().mean()
    against = candidates.double() - candidates.double().mean(dim=(1, 2, 3), keepdim=True)
    lengths = centred.norm() * against.flatten(1).norm(dim=1)
    peaks = _cross(centred, against).amax(dim=(1, 2, 3))
    return torch.where(lengths > 1e-9, peaks / lengths.clamp_min(1e-9), torch.zeros_like(peaks))


def _best_of_others(image: Tensor, own: Tensor, others: Tensor) -> float:
    """Return the largest correlation with another image; a copy of the right one is no other."""
    different = (others - own).flatten(1).abs().amax(dim=1) > 1e-6
    if not bool(different.any()):
        return 0.0
    return float(peak_correlation(image, others[different]).max())


def _cross(image: Tensor, candidates: Tensor) -> Tensor:
    """Return the cross-correlations (M, 2, H, W) at all circular shifts, of the image and of its mirror."""
    found = []
    for version in (image, image.flip(-1)):
        product = torch.fft.rfft2(candidates) * torch.fft.rfft2(version).conj()
        found.append(torch.fft.irfft2(product, s=image.shape[-2:]).sum(dim=1))
    return torch.stack(found, dim=1)
