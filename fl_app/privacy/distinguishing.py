"""Empirical epsilon: an observer of releases tells a client's presence from its absence.

An observer runs a mechanism many times in both worlds and reduces each release to one number. A threshold on
it has a rate of false alarms and a rate of misses; under differential privacy they cannot both be small.
The measured rates therefore refute every epsilon that is too small. The measurement can prove a leak, never
its absence: another statistic may detect more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta
from torch import Tensor

from fl_app.privacy.gaussian_privacy import EpsilonInterval

Release = Callable[[bool], Tensor]
"""Runs the mechanism once, with the client or without it."""
Statistic = Callable[[Tensor], float]
"""Reduces a release to one number, which is larger if the client is there."""
_Floats = NDArray[np.float64]
_Rates = tuple[_Floats, _Floats, _Floats]
"""Lower limits, estimates and upper limits of error rates."""


@dataclass(frozen=True)
class Distinguished:
    """Evidence against too small an epsilon. Each limit holds with the requested confidence."""

    trials: int
    """Trials in each world; half of them choose the threshold, the other half measure."""
    delta: float
    confidence: float
    lower_bound: float
    """Lower bound of epsilon for any mechanism."""
    distance: tuple[float, float]
    """Interval of mu, the distance of Gaussian worlds with the same error rates.

    The lower end refutes every claim of mu-Gaussian privacy with a smaller mu, for any mechanism.
    """
    gaussian: EpsilonInterval
    """Epsilon of Gaussian worlds at that distance; that of the mechanism if its noise is Gaussian."""

    def refutes(self, distance: float) -> bool:
        """Return whether the evidence rules out worlds as close as ``distance``."""
        return self.distance[0] > distance


def along(direction: Tensor) -> Statistic:
    """Return the statistic that is best for a shift along ``direction`` in Gaussian noise."""
    unit = direction.double() / direction.double().norm()
    return lambda release: float(release.double() @ unit)


def energy(release: Tensor) -> float:
    """Return the squared norm, which separates worlds whose noise differs in size."""
    return float(release.double().square().sum())


def distinguish(
    release: Release, statistic: Statistic, *, trials: int, delta: float, confidence: float = 0.95
) -> Distinguished:
    """Run ``release`` repeatedly in each world, and measure how well ``statistic`` separates them."""
    if trials < 4 or not 0 < delta < 1 or not 0 < confidence < 1:
        raise ValueError(
            "distinguish: expected trials >= 4, delta and confidence in (0, 1), "
            f"got {trials}, {delta}, {confidence}"
        )
    absent, present = (
        np.array([statistic(release(world)) for _ in range(trials)], np.float64) for world in (False, True)
    )
    half = trials // 2
    candidates = np.unique(np.concatenate([absent[:half], present[:half]]))
    middle = np.array([(np.median(absent[:half]) + np.median(present[:half])) / 2])

    def rates(thresholds: _Floats, part: slice) -> tuple[_Rates, _Rates]:
        # two rates with two limits each: each gets a quarter of the allowed error
        tail = (1 - confidence) / 4
        alarms = (absent[None, part] >= thresholds[:, None]).sum(1)
        misses = (present[None, part] < thresholds[:, None]).sum(1)
        count = len(absent[part])
        return _clopper_pearson(alarms, count, tail), _clopper_pearson(misses, count, tail)

    chosen, counted = slice(None, half), slice(half, None)
    alarms, misses = rates(candidates, chosen)
    sharpest = candidates[[int(np.argmax(_epsilon(alarms[2], misses[2], delta)))]]
    alarms, misses = rates(sharpest, counted)
    lower_bound = float(_epsilon(alarms[2], misses[2], delta)[0])
    alarms, misses = rates(middle, counted)
    high, estimate, low = (float(_distance(a, m)[0]) for a, m in zip(alarms, misses, strict=True))
    return Distinguished(
        trials=trials,
        delta=delta,
        confidence=confidence,
        lower_bound=lower_bound,
        distance=(low, high),
        gaussian=EpsilonInterval.of_distances(low, estimate, high, delta),
    )


def _clopper_pearson(errors: NDArray[np.int64], count: int, tail: float) -> _Rates:
    """Return limits of a rate from ``errors`` of ``count``, each wrong with probability ``tail``."""
    low = np.where(errors > 0, beta.ppf(tail, np.maximum(errors, 1), count - errors + 1), 0.0)
    high = np.where(errors < count, beta.ppf(1 - tail, errors + 1, np.maximum(count - errors, 1)), 1.0)
    return low, errors / count, high


def _epsilon(alarms: _Floats, misses: _Floats, delta: float) -> _Floats:
    """Return the smallest epsilon that allows these error rates."""
    ratios = np.maximum((1 - delta - misses) / alarms, (1 - delta - alarms) / misses)
    epsilon: _Floats = np.log(np.maximum(ratios, 1.0))
    return epsilon


def _distance(alarms: _Floats, misses: _Floats) -> _Floats:
    """Return the distance of Gaussian worlds in which a threshold has these error rates."""
    apart = -ndtri(alarms) - ndtri(misses)
    # a rate of 0 beside a rate of 1 carries no evidence
    distance: _Floats = np.where(np.isnan(apart), -math.inf, apart)
    return distance
