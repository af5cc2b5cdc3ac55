"""Epsilon estimated from one run: the cosines of canaries with the released vectors.

A canary is a client whose update is a random direction, as long as clipping allows (Andrew et al., 2023).
Without participation, its cosine with any released vector of d entries follows N(0, 1/d). Canaries that took
part have higher cosines; sampling, clipping and noise determine the distance. One run with many canaries
measures that distance, since random directions hardly disturb each other.
"""

from __future__ import annotations

import math

import torch
from scipy.special import ndtri
from torch import Tensor

from fl_app.privacy.gaussian_privacy import EpsilonInterval
from fl_app.seeding import SERVER, generator_for

CONFIDENCE = 0.95
"""Confidence level of an estimate's interval."""


def canary_direction(seed: int, canary: int, size: int) -> Tensor:
    """Return a canary's unit vector, in double precision on the CPU."""
    generator = generator_for(seed, 0, SERVER, f"canary/{canary}")
    direction: Tensor = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
    return direction.div_(direction.norm())


def estimate_epsilon(cosines: Tensor, size: int, delta: float) -> EpsilonInterval:
    """Return epsilon of Gaussian worlds at the distance of these cosines from those of unseen canaries.

    ``size`` is the number of entries of a direction.
    """
    if len(cosines) < 2:
        raise ValueError(f"estimate_epsilon: expected at least 2 canaries, got {len(cosines)}")
    distances = cosines.double() * math.sqrt(size)  # unseen canaries have mean 0 and deviation 1
    mean = float(distances.mean())
    margin = float(ndtri((1 + CONFIDENCE) / 2) * distances.std() / math.sqrt(len(distances)))
    return EpsilonInterval.of_distances(mean - margin, mean, mean + margin, delta)
