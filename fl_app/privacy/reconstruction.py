"""Reconstruction robustness: the most that any attack can recover from noisy releases.

After Hayes, Mahloujifar and Balle (2023). An attacker who knows everything but one sample has to guess it if
it is left out of the releases; the guess is right with a chance of at most the prior. The blow-up function
bounds how far the releases can raise that chance, for every attack at once. It is that of a hypothesis
test: the largest power at the level of the prior.

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
"""Chance of the numbers of steps that are counted as if the attack were certain to succeed."""


@dataclass(frozen=True)
class Exposure:
    """The noisy sums that one sample, or one client, may be in, as one observer sees them."""

    signal: float
    """Sum over the steps that it is certainly in of ``1 / multiplier^2``."""
    noise_multiplier: float = math.inf
    """Of the steps that it may be in: the noise's standard deviation over the clipping bound."""
    rate: float = 0.0
    """Its chance to be in one of them."""
    steps: int = 0
    discrete: bool = False
    """Whether the noise is a discrete Gaussian, whose tests are known through its divergences alone."""

    def __post_init__(self) -> None:
        """Refuse what no releases could be."""
        if not self.signal >= 0:
            raise ValueError(f"Exposure: signal must be at least 0, got {self.signal}")
        if not self.noise_multiplier >= 0:
            raise ValueError(f"Exposure: noise_multiplier must be at least 0, got {self.noise_multiplier}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"Exposure: rate must be in [0, 1], got {self.rate}")
        if self.steps < 0:
            raise ValueError(f"Exposure: steps must be at least 0, got {self.steps}")


def reconstruction_bound(prior: float, exposure: Exposure) -> float:
    """Return an upper bound on the chance that any attack recovers the sample.

    ``prior`` is the chance of the best guess before anything is released. For one step, or several that
    the sample is certainly in, the bound is attained by the worst case of Gaussian noise. Where steps draw
    samples, the observer is also told which of them the sample was in: the bound is the mean over
    that number.
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
    """Return the chance of the best guess at one of ``images``, and at one whose class is known.

    A guess is right if its mean squared error is below ``mse_below``; each image is equally likely, and so
    is each image of a class. All images that one guess is right for are within four times that
    error of each other, so the most neighbours of an image bound the chance of any guess, blurred means
    included. Of several classes the easiest counts.
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
    """Return the exposure to releases, given as noise multiplier and steps, and where hidden with their rate.

    Hidden releases that differ count as if each had the least noise and the largest rate of them.
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

    Each order a bounds it by ``(prior * exp(a mu^2 / 2)) ** ((a - 1) / a)``; this is the least of them.
    """
    if prior == 0:
        return 0.0
    least = math.sqrt(-2 * math.log(prior))
    return 1.0 if mu >= least else math.exp(-((least - mu) ** 2) / 2)


def _largest_share(near: Tensor) -> float:
    return float(near.sum(dim=1).max()) / len(near)
