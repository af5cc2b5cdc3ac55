"""Privacy of the Gaussian mechanism as one number: mu, the distance of two worlds in deviations of the noise.

Two worlds are mu-apart if telling them apart is as hard as telling N(0, 1) from N(mu, 1): Gaussian
differential privacy (Dong, Roth and Su, 2022). One release with a noise multiplier of sigma has
mu = 1 / sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import log_ndtr


@dataclass(frozen=True)
class EpsilonInterval:
    """An estimate of epsilon between two limits."""

    low: float
    estimate: float
    high: float

    @classmethod
    def of_distances(cls, low: float, estimate: float, high: float, delta: float) -> EpsilonInterval:
        """Return the interval of epsilon at ``delta`` for an interval of mu."""
        return cls(*(gaussian_epsilon(distance, delta) for distance in (low, estimate, high)))


def gaussian_epsilon(distance: float, delta: float) -> float:
    """Return the exact epsilon of worlds at a given ``distance`` (Balle and Wang, 2018, Theorem 8)."""
    if not 0 < delta < 1:
        raise ValueError(f"gaussian_epsilon: delta must be in (0, 1), got {delta}")
    if distance <= 0:
        return 0.0
    if math.isinf(distance):
        return math.inf

    def excess(epsilon: float) -> float:
        near, far = distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance
        # the exponent exceeds 0 by rounding alone, where both terms are large
        return math.exp(log_ndtr(near)) - math.exp(min(0.0, epsilon + log_ndtr(far))) - delta

    if excess(0.0) <= 0:
        return 0.0
    # the loss is normal with mean mu^2 / 2 and deviation mu: its tail beyond this point is below delta
    largest = distance * distance / 2 + distance * math.sqrt(2 * math.log(1 / delta))
    if math.isinf(largest):
        return math.inf
    return float(brentq(excess, 0.0, largest, xtol=1e-12))


def gaussian_distance(epsilon: float, delta: float) -> float:
    """Return the largest distance of worlds whose epsilon at ``delta`` is at most ``epsilon``."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"gaussian_distance: epsilon must be finite and above 0, got {epsilon}")
    high = 1.0
    while gaussian_epsilon(high, delta) <= epsilon:
        high *= 2
    found = float(brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, 0.0, high, xtol=1e-12))
    # on the safe side of the root
    while gaussian_epsilon(found, delta) > epsilon:
        found *= 1 - 1e-10
    return found
