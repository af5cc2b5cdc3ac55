"""ε of composed Gaussian releases: exact without sampling, by Rényi accounting with it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

from fl_app.privacy import Ledger, Release
from fl_app.privacy.gaussian_privacy import gaussian_epsilon

Released = tuple[float, float, int]
"""Noise multiplier, sampling rate and number of releases."""


def composed_epsilon(released: Sequence[Released], delta: float) -> float:
    """Return the ε of all releases together, each at its noise multiplier and sampling rate."""
    if any(sigma <= 0 for sigma, _, _ in released):
        return math.inf
    if all(rate >= 1 for _, rate, _ in released):
        return float(gaussian_epsilon(math.sqrt(math.fsum(n / s**2 for s, _, n in released)), delta))
    try:
        return _by_dp_accounting(released, delta)
    except ImportError:
        ledger = Ledger(accountant="rdp")
        for sigma, rate, steps in released:
            ledger.charge(0, Release(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=delta))
        return float(ledger.epsilon() or 0.0)


def _by_dp_accounting(released: Sequence[Released], delta: float) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    for sigma, rate, steps in released:
        step = dp_accounting.PoissonSampledDpEvent(min(rate, 1.0), dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(step, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))
