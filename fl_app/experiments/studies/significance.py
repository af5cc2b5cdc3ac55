"""Tests on differences, and on values without bounds.

Pure arithmetic: differences in, probabilities and intervals out. A test's null hypothesis is that the
centre is at most a number. The centre is the centre of symmetry for sign flips, the mean for Student's
test, and the median for the sign test.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom
from scipy.stats import t as student

EXACT_UNITS = 40
"""Largest number of differences for which all signs are enumerated; beyond, signs are drawn."""
_DRAWS = 200_000
_CHUNK = 20_000
_TIE = 1e-12
"""Sums that differ by less, relative to the sum of all sizes, count as equal: float sums depend on order."""
_SAME = 1e-9
"""Relative spread below which differences count as identical up to rounding."""
_SUBSETS = 14
"""Largest number of differences for which the means of all subsets give the interval."""
_DRAWN_SUBSETS = 20_000


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the probability of a sum at least this large if each difference had a random sign.

    One-sided and exact up to `EXACT_UNITS`: the sums of two halves are combined, so that 2^(n/2) sums
    are sorted instead of computing 2^n. Beyond that, signs are drawn with a fixed seed, and the observed
    signs count as one draw, so that the test stays valid.
    """
    sizes = np.abs(np.asarray(differences, dtype=np.float64))
    if sizes.size == 0 or not np.isfinite(sizes).all():
        raise ValueError(f"sign_flip_p: expected finite differences, at least one, got {list(differences)}")
    total = float(sizes.sum())
    least = float(np.sum(differences)) - _TIE * total
    if sizes.size > EXACT_UNITS:
        return _drawn(sizes, least)
    half = sizes.size // 2
    first, second = np.sort(_signed_sums(sizes[:half])), _signed_sums(sizes[half:])
    # for each sum of the second half, count the sums of the first that reach the total
    enough = first.size - np.searchsorted(first, least - second, side="left")
    return float(enough.sum()) / 2.0**sizes.size


def sign_flip_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the centres of symmetry that sign flips reject on neither side; None if all are accepted.

    A centre is rejected if few subsets of the differences have a mean beyond it (Hartigan's typical
    values), so the ends of the interval are ranks of those means.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.size <= _SUBSETS:
        bits = np.arange(1, 2**values.size)
        chosen = (bits[:, None] >> np.arange(values.size)) & 1
    else:
        chosen = np.random.default_rng(0).integers(0, 2, size=(_DRAWN_SUBSETS, values.size))
        chosen = chosen[chosen.any(axis=1)]
    means = np.sort(chosen @ values / chosen.sum(axis=1))
    rank = math.floor((1 - confidence) / 2 * (means.size + 1))
    return None if rank < 1 else Interval(float(means[rank - 1]), float(means[-rank]))


def student_p(differences: Sequence[float], above: float = 0.0) -> float:
    """Return the one-sided probability of Student's test that the mean is above a number.

    Identical differences say nothing about their spread, so only the n signs count: p = 2^-n.
    """
    mean, error = _mean_and_error(differences)
    if error == 0.0:
        return 2.0 ** -len(differences) if mean > above else 1.0
    return float(student.sf((mean - above) / error, len(differences) - 1))


def student_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return Student's interval of the mean; None if the differences are identical."""
    mean, error = _mean_and_error(differences)
    reach = float(student.ppf(0.5 + confidence / 2, len(differences) - 1)) * error
    return Interval(mean - reach, mean + reach) if error > 0 else None


def sign_p(values: Sequence[float], above: float) -> float:
    """Return the one-sided exact probability of the sign test that the median is above a number."""
    hits = sum(value > above for value in values)
    return float(binom.sf(hits - 1, len(values), 0.5))


def sign_interval(values: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Return the interval of the median by ranks; None if there are too few values."""
    ordered = sorted(values)
    rank = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    if binom.cdf(rank, len(ordered), 0.5) > (1 - confidence) / 2:
        rank -= 1
    return None if rank < 0 else Interval(ordered[rank], ordered[-1 - rank])


def _signed_sums(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.zeros(1)
    for size in sizes:
        sums = np.concatenate([sums - size, sums + size])
    return sums


def _drawn(sizes: NDArray[np.float64], least: float) -> float:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(_DRAWS // _CHUNK):
        signs = generator.integers(0, 2, size=(_CHUNK, sizes.size), dtype=np.int8) * 2.0 - 1.0
        hits += int(np.count_nonzero(signs @ sizes >= least))
    return (1 + hits) / (1 + _DRAWS)


def _mean_and_error(differences: Sequence[float]) -> tuple[float, float]:
    if len(differences) < 2:
        raise ValueError(f"Student's test: expected at least two differences, got {len(differences)}")
    mean, spread = statistics.fmean(differences), statistics.stdev(differences)
    if spread <= _SAME * max(map(abs, differences)):
        spread = 0.0
    return mean, spread / math.sqrt(len(differences))
