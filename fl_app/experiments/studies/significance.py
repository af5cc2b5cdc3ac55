"""Tests on paired differences, with a correction for several tests.

Arithmetic alone: differences in, probabilities and intervals out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

EXACT_UNITS = 40
"""Largest number of differences for which all signs are enumerated; beyond, signs are drawn."""
_DRAWS = 200_000
_CHUNK = 20_000
_TIE = 1e-12
"""Sums that differ by less, relative to the sum of all sizes, are the same: floats add up in an order."""


class Interval(NamedTuple):
    """A confidence interval of a mean."""

    low: float
    high: float


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return how likely a sum at least this large is, if each difference had either sign by chance.

    One-sided and exact up to `EXACT_UNITS`: the signs of one half of the differences are met with those
    of the other, so that 2^(n/2) sums are sorted instead of 2^n made. Beyond that, signs are drawn
    with a fixed seed, the given ones counted as one draw, so that the test stays valid.
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
    # for each sum of the second half, how many of the first make up what is lacking
    enough = first.size - np.searchsorted(first, least - second, side="left")
    return float(enough.sum()) / 2.0**sizes.size


def student_p(differences: Sequence[float], above: float = 0.0) -> float:
    """Return the one-sided probability of Student's test that the mean is above a number."""
    mean, error = _mean_and_error(differences)
    if error == 0.0:
        return 0.0 if mean > above else 1.0
    return float(student.sf((mean - above) / error, len(differences) - 1))


def student_interval(differences: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return Student's interval of the mean."""
    mean, error = _mean_and_error(differences)
    reach = float(student.ppf(0.5 + confidence / 2, len(differences) - 1)) * error
    return Interval(mean - reach, mean + reach)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Return Holm's adjusted probabilities, in the given order: none is smaller than one below it."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    adjusted, running = [0.0] * len(probabilities), 0.0
    for rank, number in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * probabilities[number]))
        adjusted[number] = running
    return adjusted


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
    mean = statistics.fmean(differences)
    return mean, statistics.stdev(differences) / math.sqrt(len(differences))
