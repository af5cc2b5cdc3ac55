"""Bound of differential privacy on membership tests: TPR <= e^epsilon FPR + delta (Kairouz et al. 2015)."""

from __future__ import annotations

import math

from scipy.stats import beta


def member_bound(false_alarms: float, epsilon: float, delta: float) -> float:
    """Return the largest share of members that any test with this rate of false alarms can find."""
    if not (0 <= false_alarms <= 1 and epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(
            "member_bound: expected a rate, an epsilon of at least 0 and a delta in [0, 1], "
            f"got {false_alarms}, {epsilon}, {delta}"
        )
    # the same promise for the complements: 1 - FPR <= e^epsilon (1 - TPR) + delta
    steep = math.inf if epsilon > 700 and false_alarms else math.exp(min(epsilon, 700)) * false_alarms
    flat = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, steep + delta, max(flat, 0.0))


def refutes(
    hits: int, members: int, alarms: int, strangers: int, *, epsilon: float, delta: float, tests: int = 1
) -> bool:
    """Return whether counts lie above the bound even at the ends of their exact intervals.

    ``tests`` points are looked at together: a true promise is refuted with a chance of at most 5 % by any.
    """
    tail = 0.05 / (2 * max(1, tests))
    least, _ = exact_interval(hits, members, 1 - 2 * tail)
    _, most = exact_interval(alarms, strangers, 1 - 2 * tail)
    return least > member_bound(most, epsilon, delta)


def exact_interval(hits: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a rate by Clopper and Pearson."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high
