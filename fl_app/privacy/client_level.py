"""Client-level Gaussian mechanism, applied by a client to its values before sending.

The guarantee covers all data of one client (Kerkouche et al., UAI 2021, Algorithm 3, lines 25 and 26).
All clients have the same weight, because the number of a client's samples is itself private.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl_app.privacy.normal_noise import Noise


def clip_and_share(values: Tensor, *, clip: float, multiplier: float, noise: Noise) -> Tensor:
    """Scale ``values`` to an L2 norm of at most ``clip``, then add this client's share of the noise.

    ``multiplier`` is the share's standard deviation over ``clip``
    (`NoiseShares.local`). The result is in double precision on the CPU: round it
    before sending, see `normal_noise`.

    Values that are not finite become 0. They raise no error: a refusal would itself
    leak something about the client's data.
    """
    if not 0 < clip < math.inf:
        raise ValueError(f"clip_and_share: clip must be a finite number above 0, got {clip}")
    if not 0 <= multiplier < math.inf:
        raise ValueError(f"clip_and_share: multiplier must be finite and at least 0, got {multiplier}")
    if values.ndim != 1:
        raise ValueError(f"clip_and_share: values must be a vector, got shape {tuple(values.shape)}")
    clipped = clip_vector(values, clip)
    return clipped if multiplier == 0 else clipped + clip * multiplier * noise(len(clipped))


def clip_vector(values: Tensor, clip: float) -> Tensor:
    """Return ``values`` with an L2 norm of at most ``clip``, in double precision on the CPU."""
    values = values.detach().to("cpu", torch.float64)
    norm = float(torch.linalg.vector_norm(values))
    if not math.isfinite(norm):
        return torch.zeros_like(values)
    # slightly below the bound, so that rounding of the products cannot exceed it
    return values if norm <= clip else values * (clip / norm * (1 - 4 * torch.finfo(torch.float64).eps))
