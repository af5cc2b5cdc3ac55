"""Accounting: ε of releases, and the noise that keeps it within a budget.

The computations are Opacus'. It is imported where it is used: that takes a second
or two, and a run without differential privacy does without it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from fl_app.privacy.events import Release

ACCOUNTANTS = ("rdp", "prv")
"""rdp: Rényi, quick, an upper bound; prv: privacy loss distributions, tighter and slower."""

WHOLE_ORDERS = (*range(2, 33), 36, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512)
BROKEN_ORDERS = (
    1.1,
    1.2,
    1.3,
    1.4,
    *(i / 4 for i in range(6, 24) if i % 4),
    *(i + 0.5 for i in range(6, 11)),
)
"""Orders of the Rényi divergence. Each gives a valid bound, and the lowest counts.

Fewer than Opacus' own between 1 and 11, where one order can take 20 ms; more above
63, without which no epsilon under 0.1 could be shown.
"""

_DIGITS = 10_000
"""Calibrated noise multipliers are multiples of one over this."""

Spent = dict[tuple[float, float], int]
"""Steps by sampling rate and noise multiplier; in which order they were taken does not matter."""
History = tuple[tuple[float, float, int], ...]
"""Noise multiplier, sampling rate and steps, as Opacus' accountants take them."""


@dataclass
class Ledger:
    """Record of the releases of each client. Its fields are plain data, and all of its state."""

    accountant: str = "rdp"
    delta: float | None = None
    """That of all releases: epsilons at different deltas cannot be compared. None before the first one."""
    spent: dict[int, Spent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an accountant that is not there."""
        if self.accountant not in ACCOUNTANTS:
            raise ValueError(
                f"Ledger: accountant must be one of {', '.join(ACCOUNTANTS)}; got {self.accountant!r}"
            )

    def charge(self, who: int, release: Release) -> None:
        """Add a release to what client ``who`` has spent."""
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
        return max(_epsilon(self.accountant, history, self.delta) for history in histories)


@cache
def calibrate(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """Return the noise multiplier that keeps ``steps`` steps within the budget (Rényi accounting)."""
    from opacus.accountants.utils import get_noise_multiplier

    orders = [order for order in _orders() if _least_epsilon(order, delta) < epsilon]
    if not orders:
        least = min(_least_epsilon(order, delta) for order in _orders())
        raise ValueError(f"calibrate: epsilon must be above {least:.3g} at delta={delta}, got {epsilon}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or the last: still a bound
        sigma: float = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=sample_rate,
            steps=steps,
            epsilon_tolerance=epsilon / 1000,
            alphas=orders,
        )
    return math.ceil(sigma * _DIGITS) / _DIGITS


def _orders() -> list[float]:
    return sorted(map(float, (*BROKEN_ORDERS, *WHOLE_ORDERS)))


@lru_cache(maxsize=1024)
def _epsilon(accountant: str, history: History, delta: float) -> float:
    if any(sigma == 0 for sigma, _, _ in history):
        return math.inf
    return _prv_epsilon(history, delta) if accountant == "prv" else _rdp_epsilon(history, delta)


def _prv_epsilon(history: History, delta: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # log(0) at a sampling rate of 1, where it is meant
        return float(accountant.get_epsilon(delta))


def _rdp_epsilon(history: History, delta: float) -> float:
    """Return what Opacus' RDPAccountant would at our orders, without evaluating any that cannot count.

    It computes every order anew at every call, which in a run of many rounds
    takes longer than the training.
    """
    bound = _bound(history, delta, WHOLE_ORDERS)
    # whole orders are quick to evaluate; of the others only some can be lower still
    return min(bound, _bound(history, delta, [o for o in BROKEN_ORDERS if _least_epsilon(o, delta) < bound]))


def _bound(history: History, delta: float, orders: Sequence[float]) -> float:
    from opacus.accountants.analysis.rdp import get_privacy_spent

    if not orders:
        return math.inf
    divergences = [sum(n * _divergence(sigma, rate, o) for sigma, rate, n in history) for o in orders]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the best order is the first or the last: still a bound
        epsilon, _ = get_privacy_spent(orders=orders, rdp=divergences, delta=delta)
    return max(0.0, float(epsilon))


@cache
def _least_epsilon(order: float, delta: float) -> float:
    """Return the epsilon that this order gives for a release of nothing: it never gives less."""
    return _bound((), delta, (order,))


@cache
def _divergence(sigma: float, rate: float, order: float) -> float:
    """Return the Rényi divergence of one step."""
    from opacus.accountants.analysis.rdp import compute_rdp

    return float(compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=float(order)))
