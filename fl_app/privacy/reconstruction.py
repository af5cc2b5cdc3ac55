"""Reconstruction robustness: the most that any attack can recover from noisy releases.

After Hayes, Mahloujifar and Balle (2023). An attacker who knows everything but one sample must guess it if
the releases leave it out; the guess is right with at most the prior probability. The blow-up function bounds
how far the releases can raise that probability, for every attack at once. It is the largest power of a
hypothesis test at the level of the prior.

The reference is the same run with the sample's contribution replaced by 0. It holds for every way of
drawing samples that does not look at them, and needs no assumption about adjacency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.stats import binom, norm
from torch import Tensor

_NEGLIGIBLE = 1e-15
"""Probability mass of step counts for which we assume that the attack succeeds."""


@dataclass(frozen=True)
class Exposure:
    """Noisy sums that may contain one sample or one client, from the view of one observer."""

    signal: float
    """Sum of ``1 / multiplier^2`` over the steps that certainly contain it."""
    noise_multiplier: float = math.inf
    """Noise's standard deviation over the clipping bound, for the steps that may contain it."""
    rate: float = 0.0
    """Probability that one of those steps contains it."""
    steps: int = 0
    discrete: bool = False
    """True if the noise is a discrete Gaussian, whose tests are bounded by its divergences only."""

    def __post_init__(self) -> None:
        """Refuse values that no releases can have."""
        if not self.signal >= 0:
            raise ValueError(f"Exposure: signal must be at least 0, got {self.signal}")
        if not self.noise_multiplier >= 0:
            raise ValueError(f"Exposure: noise_multiplier must be at least 0, got {self.noise_multiplier}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"Exposure: rate must be in [0, 1], got {self.rate}")
        if self.steps < 0:
            raise ValueError(f"Exposure: steps must be at least 0, got {self.steps}")


def reconstruction_bound(prior: float, exposure: Exposure) -> float:
    """Return an upper bound on the probability that any attack recovers the sample.

    ``prior`` is the success probability of the best guess before any release. For steps that certainly
    contain the sample, the worst case of Gaussian noise attains the bound. Where steps draw samples, we also
    tell the observer which steps contain the sample: the bound is the mean over their number.
    """
    if not 0 <= prior <= 1:
        raise ValueError(f"reconstruction_bound: prior must be in [0, 1], got {prior}")
    blow_up = _blow_up_by_divergence if exposure.discrete else _blow_up
    if exposure.steps == 0 or exposure.rate == 0:
        return blow_up(prior, math.sqrt(exposure.signal))
    chances = binom(exposure.steps, exposure.rate)
    low, high = int(chances.ppf(_NEGLIGIBLE)), int(chances.isf(_NEGLIGIBLE))
    each = math.inf if exposure.noise_multiplier == 0 else exposure.noise_multiplier**-2
    counts = range(low, high + 1)
    weights = [float(chances.pmf(count)) for count in counts]
    successes = [
        blow_up(prior, math.sqrt(exposure.signal + (count * each if count else 0.0))) for count in counts
    ]
    mean = math.fsum(weight * success for weight, success in zip(weights, successes, strict=True))
    beyond = max(0.0, 1 - math.fsum(weights))
    return min(1.0, mean + beyond)


def prior_success(images: Tensor, labels: Tensor, mse_below: float) -> tuple[float, float]:
    """Return the success probability of the best guess at one of ``images``, and at one of known class.

    A guess is right if its mean squared error is below ``mse_below``; all images are
    equally likely, also within a class. All images for which one guess is right are within four times that
    error of each other. So the largest number of neighbours of an image bounds every guess, blurred means
    included. With several classes, we report the easiest.
    """
    if len(images) == 0 or len(images) != len(labels):
        raise ValueError(
            "prior_success: images and labels must be as many and not none, "
            f"got {len(images)} and {len(labels)}"
        )
    if not mse_below > 0:
        raise ValueError(f"prior_success: mse_below must be above 0, got {mse_below}")
    flat = images.flatten(1).double()
    near = torch.cdist(flat, flat).square() <= 4 * mse_below * flat.shape[1]
    near |= torch.eye(len(flat), dtype=torch.bool)
    shares = [_largest_share(near[labels == label][:, labels == label]) for label in labels.unique()]
    return _largest_share(near), max(shares)


def exposure_of(
    certain: Sequence[tuple[float, int]],
    hidden: Sequence[tuple[float, float, int]],
    *,
    discrete: bool = False,
) -> Exposure:
    """Return the exposure to releases, given as noise multiplier and steps, hidden ones also with a rate.

    Hidden releases that differ all count with their least noise and their largest rate.
    """
    signal = math.fsum(math.inf if sigma == 0 else steps / sigma**2 for sigma, steps in certain if steps)
    left = [(sigma, rate, steps) for sigma, rate, steps in hidden if steps]
    return Exposure(
        signal=signal,
        noise_multiplier=min((sigma for sigma, _, _ in left), default=math.inf),
        rate=max((rate for _, rate, _ in left), default=0.0),
        steps=sum(steps for _, _, steps in left),
        discrete=discrete,
    )


def _blow_up(prior: float, mu: float) -> float:
    """Return the power of the best test at level ``prior`` between normals whose means are ``mu`` apart."""
    if prior in (0.0, 1.0) or mu == math.inf:
        return float(prior > 0)
    return float(norm.cdf(norm.ppf(prior) + mu))


def _blow_up_by_divergence(prior: float, mu: float) -> float:
    """Return a bound on that power for any noise whose Rényi divergences are at most those of normals.

    Each order a bounds it by ``(prior * exp(a mu^2 / 2)) ** ((a - 1) / a)``; return the lowest bound.
    """
    if prior == 0:
        return 0.0
    least = math.sqrt(-2 * math.log(prior))
    return 1.0 if mu >= least else math.exp(-((least - mu) ** 2) / 2)


def _largest_share(near: Tensor) -> float:
    return float(near.sum(dim=1).max()) / len(near)
