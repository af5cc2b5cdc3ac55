"""Exact tests and intervals for the mean of scores between 0 and 1.

A 0/1 score is binomial. Any other bounded score is tested by betting (Waudby-Smith and Ramdas, 2024):
if the mean is at most m, capital staked on each score being above m cannot grow on average, so by
Markov's inequality it exceeds 1/α with a probability of at most α. The stakes are a fixed mixture, so
the order of the scores makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from fl_app.experiments.studies.significance import Interval

STAKES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Shares of the largest stake that cannot ruin the bettor, mixed equally."""
_STEPS = 50
"""Number of bisections in the search for an interval's end."""


def binomial_p(scores: Sequence[float], above: float) -> float:
    """Return the exact one-sided p-value of the number of hits against a share of at most ``above``."""
    hits = _hits(scores)
    if above <= 0:
        return 0.0 if hits or above < 0 else 1.0
    return 1.0 if above >= 1 else float(binom.sf(hits - 1, len(scores), above))


def binomial_interval(scores: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the interval of Clopper and Pearson for the share of hits."""
    hits, n, tail = _hits(scores), len(scores), (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, n - hits + 1))
    high = 1.0 if hits == n else float(beta.isf(tail, hits + 1, n - hits))
    return Interval(low, high)


def betting_p(scores: Sequence[float], above: float) -> float:
    """Return a valid one-sided p-value of the scores against a mean of at most ``above``."""
    values = _bounded(scores)
    if above <= 0:
        return 0.0 if above < 0 or values.any() else 1.0
    if above >= 1:
        return 1.0
    growth = np.array(STAKES)[:, None] * (values / above - 1.0)
    with np.errstate(divide="ignore"):  # a whole stake on a score of 0 loses everything
        logs = np.log1p(growth).sum(axis=1)
    return float(min(1.0, np.exp(np.log(len(STAKES)) - np.logaddexp.reduce(logs))))


def betting_interval(scores: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the interval of means that betting rejects on neither side."""
    mirrored = [1.0 - score for score in scores]
    tail = (1 - confidence) / 2
    low = _least(lambda mean: betting_p(scores, mean) > tail)
    return Interval(low, 1.0 - _least(lambda mean: betting_p(mirrored, mean) > tail))


def _least(accepted: Callable[[float], bool]) -> float:
    """Return the smallest mean that is accepted, a little below it: the larger a mean, the less it wins."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if accepted(middle) else (middle, high)
    return low


def _hits(scores: Sequence[float]) -> int:
    if not len(scores) or any(score not in (0, 1) for score in scores):
        raise ValueError(f"binomial test: expected scores of 0 and 1, at least one, got {list(scores)}")
    return int(sum(scores))


def _bounded(scores: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if not values.size or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"betting test: expected scores from 0 to 1, at least one, got {list(scores)}")
    return values
