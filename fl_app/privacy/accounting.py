"""Accounting: ε of releases, and the noise that keeps it within a budget.

Opacus does the computations. Functions import it on use: the import takes a second
or two, and a run without differential privacy does not need it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from fl_app.privacy.cohorts import SAMPLINGS
from fl_app.privacy.events import Release
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.privacy.loss_without_replacement import epsilon_without_replacement
from fl_app.privacy.sampling_without_replacement import divergence_without_replacement

ACCOUNTANTS = ("rdp", "prv", "moments", "auto")
"""rdp: Rényi, quick, an upper bound; prv: privacy loss distributions, tighter and slower, up to an epsilon
of 100 and for a delta that floats resolve (else rdp); moments: Rényi with the looser conversion of the
moments accountant, which the FL-TOP paper uses; auto: the lowest valid bound for the mechanism."""

WHOLE_ORDERS = (*range(2, 33), 36, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512)
BROKEN_ORDERS = (
    1.1,
    1.2,
    1.3,
    1.4,
    *(i / 4 for i in range(6, 24) if i % 4),
    *(i + 0.5 for i in range(6, 11)),
)
"""Orders of the Rényi divergence. Each gives a valid bound; we report the lowest.

There are fewer than in Opacus between 1 and 11, where one order can take 20 ms, and more
above 63, which an epsilon under 0.1 needs.
"""

_DIGITS = 10_000
"""Calibrated noise multipliers are multiples of one over this."""
_MOST_NOISE = 10_000
_OPACUS_ERROR = 0.01
"""Part of every epsilon by Opacus' loss distributions, so none is smaller."""
_LARGEST_EPSILON = 100.0
"""Epsilon above which privacy losses have too many values to list, and the Rényi bound stands in."""

Spent = dict[tuple[float, float], int]
"""Steps by sampling rate and noise multiplier; their order does not matter."""
Divergence = Callable[[float, float, float], float]
"""Divergence of one step, from noise multiplier, sampling rate and order."""
History = tuple[tuple[float, float, int], ...]
"""Noise multiplier, sampling rate and steps, in the format of Opacus' accountants."""


@dataclass
class Ledger:
    """Record of the releases of each client. Plain data: the fields are its whole state."""

    accountant: str = "rdp"
    delta: float | None = None
    """Delta of all releases, since epsilons at different deltas are not comparable; None before the first."""
    spent: dict[int, Spent] = field(default_factory=dict)
    sampling: str = "poisson"
    discrete: bool = False
    """True if the noise is a discrete Gaussian. Sampled, its divergences are known at whole orders, where
    they equal those of the continuous Gaussian (shifts by whole numbers preserve its normalisation); without
    sampling those of the continuous one bound them at all orders (Canonne, Kamath and Steinke, 2020)."""

    def __post_init__(self) -> None:
        """Refuse an unknown accountant, or one that does not support the mechanism."""
        if self.sampling not in SAMPLINGS:
            raise ValueError(f"Ledger: sampling must be one of {', '.join(SAMPLINGS)}; got {self.sampling!r}")
        if self.accountant == "prv" and self.discrete:
            raise ValueError("Ledger: the prv accountant knows continuous noise only; take auto or rdp")
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(
                f"Ledger: accountant must be one of {', '.join(ACCOUNTANTS)}; got {self.accountant!r}"
            )

    def charge(self, who: int, release: Release) -> None:
        """Add a release to the account of client ``who``."""
        if self.delta not in (None, release.delta):
            raise ValueError(f"Ledger: client {who}: delta must be {self.delta}, got {release.delta}")
        self.delta = release.delta
        spent = self.spent.setdefault(who, {})
        mechanism = (release.sample_rate, release.noise_multiplier)
        spent[mechanism] = spent.get(mechanism, 0) + release.steps

    def epsilon(self) -> float | None:
        """Return the largest epsilon of any client, or None if nothing was released."""
        if self.delta is None:
            return None
        histories = {
            tuple((sigma, rate, steps) for (rate, sigma), steps in sorted(spent.items()))
            for spent in self.spent.values()
        }
        return max(
            _epsilon(self.accountant, history, self.delta, self.sampling, self.discrete)
            for history in histories
        )


@cache
def calibrate(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = "rdp",
    sampling: str = "poisson",
    discrete: bool = False,
) -> float:
    """Return the smallest noise multiplier, on a grid of 1e-4, that keeps the given steps within a budget."""

    def spent(multiple: int) -> float:
        history = ((multiple / _DIGITS, sample_rate, steps),)
        return _epsilon(accountant, history, delta, sampling, discrete)

    low, high = 0, _DIGITS
    while spent(high) > epsilon:
        low, high = high, 2 * high
        if high > _MOST_NOISE * _DIGITS:
            raise ValueError(
                f"calibrate: no noise multiplier up to {_MOST_NOISE} brings epsilon to {epsilon} "
                f"at delta={delta}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high / _DIGITS


@lru_cache(maxsize=1024)
def _epsilon(accountant: str, history: History, delta: float, sampling: str, discrete: bool) -> float:
    if any(sigma == 0 for sigma, _, _ in history):
        return math.inf
    if accountant == "auto":
        return _least_bound(history, delta, sampling, discrete)
    if accountant == "prv":
        return _prv_epsilon(history, delta, sampling)
    if sampling == "fixed":
        return _bound(history, delta, WHOLE_ORDERS, accountant, divergence_without_replacement)
    if accountant == "moments" or (discrete and any(rate < 1 for _, rate, _ in history)):
        return _bound(history, delta, WHOLE_ORDERS, accountant)
    return _rdp_epsilon(history, delta)


def _least_bound(history: History, delta: float, sampling: str, discrete: bool) -> float:
    if not discrete and all(rate == 1 for _, rate, _ in history):
        # without sampling, Gaussian releases compose to one, whose epsilon is known exactly
        signal = math.fsum(steps / sigma**2 for sigma, _, steps in history)
        shift = 2 if sampling == "fixed" else 1
        return gaussian_epsilon(shift * math.sqrt(signal), delta)
    bound = _epsilon("rdp", history, delta, sampling, discrete)
    return bound if discrete else min(bound, _epsilon("prv", history, delta, sampling, discrete))


def _prv_epsilon(history: History, delta: float, sampling: str) -> float:
    coarse = _epsilon("rdp", history, delta, sampling, False)
    if not coarse <= _LARGEST_EPSILON or (sampling == "poisson" and coarse <= _OPACUS_ERROR):
        return coarse
    if sampling == "fixed":
        return min(coarse, epsilon_without_replacement(history, delta))
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(0) at a sampling rate of 1 is intended
        try:
            found = float(accountant.get_epsilon(delta))
        except ValueError:  # delta is below the rounding errors of the transform
            return coarse
    return min(coarse, max(0.0, found)) if math.isfinite(found) else coarse


def _rdp_epsilon(history: History, delta: float) -> float:
    """Return the epsilon of Opacus' RDPAccountant at our orders, skipping orders that cannot be lowest.

    Opacus recomputes every order at every call, which in a run of many rounds
    takes longer than the training.
    """
    bound = _bound(history, delta, WHOLE_ORDERS)
    # whole orders are quick to evaluate; only some of the others can be lower
    return min(bound, _bound(history, delta, [o for o in BROKEN_ORDERS if _least_epsilon(o, delta) < bound]))


def _bound(
    history: History,
    delta: float,
    orders: Sequence[float],
    conversion: str = "rdp",
    divergence: Divergence | None = None,
) -> float:
    from opacus.accountants.analysis.rdp import get_privacy_spent

    if not orders:
        return math.inf
    of_step = divergence or _divergence
    divergences = [math.fsum(n * of_step(sigma, rate, o) for sigma, rate, n in history) for o in orders]
    if conversion == "moments":  # Abadi et al. (CCS 2016), Theorem 2: the conversion of the FL-TOP paper
        spent = zip(divergences, orders, strict=True)
        return min(cost + math.log(1 / delta) / (order - 1) for cost, order in spent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns if the best order is the first or the last: still a bound
        epsilon, _ = get_privacy_spent(orders=orders, rdp=divergences, delta=delta)
    return max(0.0, float(epsilon))


@cache
def _least_epsilon(order: float, delta: float) -> float:
    """Return the epsilon of this order for an empty release, the least that it can give."""
    return _bound((), delta, (order,))


@cache
def _divergence(sigma: float, rate: float, order: float) -> float:
    """Return the Rényi divergence of one step."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=float(order)))
