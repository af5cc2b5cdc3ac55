"""The discrete Gaussian, sampled exactly from random bits.

The probability of a whole number x is proportional to ``exp(-x^2 / (2 variance))``. Sampling follows Canonne,
Kamath and Steinke (NeurIPS 2020): a discrete Laplace proposal, accepted with probability
``exp(-gamma)`` for a rational gamma. All comparisons use whole numbers, so float rounding cannot shift a
probability, and the result does not expose the grid of floats (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

Bits = Callable[[int], NDArray[np.uint64]]
"""Source of random bits: returns the requested count of independent 64-bit words."""

LARGEST_VARIANCE = 1 << 28
"""Largest variance for which products of the rejection step fit into 64 bits."""

Whole = NDArray[np.int64]
_Flags = NDArray[np.bool_]


def system_bits(count: int) -> NDArray[np.uint64]:
    """Return random words from the operating system, which cannot be replayed."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def seeded_bits(generator: torch.Generator) -> Bits:
    """Return words of a seeded generator: for simulations, since the seed reveals the noise."""

    def draw(count: int) -> NDArray[np.uint64]:
        halves = torch.randint(0, 1 << 32, (2, count), generator=generator, dtype=torch.int64, device="cpu")
        words: NDArray[np.uint64] = halves.numpy().astype(np.uint64)
        joined: NDArray[np.uint64] = np.left_shift(words[0], np.uint64(32)) | words[1]
        return joined

    return draw


def sample_discrete_gaussian(variance: int, count: int, bits: Bits = system_bits) -> Whole:
    """Return ``count`` independent numbers of the discrete Gaussian with mean 0.

    ``variance`` is the parameter of the density. From 1 on, it equals the true variance within 1e-6.
    """
    if isinstance(variance, bool) or not isinstance(variance, int) or not 1 <= variance <= LARGEST_VARIANCE:
        raise ValueError(
            f"sample_discrete_gaussian: variance must be a whole number in [1, {LARGEST_VARIANCE}], "
            f"got {variance!r}"
        )
    if count < 0:
        raise ValueError(f"sample_discrete_gaussian: count must be at least 0, got {count}")
    scale = math.isqrt(variance) + 1
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while missing.size:
        proposed = _discrete_laplace(scale, missing.size, bits)
        # gamma = (|y| - variance / scale)^2 / (2 variance), as whole numbers over one denominator
        distance = np.abs(np.abs(proposed) * scale - variance)
        accepted = _coin_exp_of_square(distance, 2 * variance * scale * scale, bits)
        drawn[missing[accepted]] = proposed[accepted]
        missing = missing[~accepted]
    return drawn


def _discrete_laplace(scale: int, count: int, bits: Bits) -> Whole:
    """Return numbers with probabilities proportional to ``exp(-|x| / scale)``."""
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while missing.size:
        rest = _below(scale, missing.size, bits)
        kept = _coin_exp(rest, scale, bits)
        whole = _geometric(missing.size, bits)
        negative = _coin(np.ones(missing.size, np.uint64), 2, bits)
        magnitude = rest.astype(np.int64) + scale * whole
        kept &= ~(negative & (magnitude == 0))  # 0 would be drawn twice as often
        drawn[missing[kept]] = np.where(negative, -magnitude, magnitude)[kept]
        missing = missing[~kept]
    return drawn


def _geometric(count: int, bits: Bits) -> Whole:
    """Return the number of successes with probability ``exp(-1)`` before the first failure."""
    successes = np.zeros(count, np.int64)
    going = np.arange(count)
    while going.size:
        going = going[_coin_exp(np.ones(going.size, np.uint64), 1, bits)]
        successes[going] += 1
    return successes


def _coin_exp_of_square(root: Whole, denominator: int, bits: Bits) -> _Flags:
    """Flip coins of probability ``exp(-root^2 / denominator)``, one whole unit of the exponent at a time."""
    # root^2 exceeds 64 bits for the few proposals far out: these use Python's own integers
    units, rest = np.empty(root.size, np.int64), np.empty(root.size, np.uint64)
    near = root < (1 << 31)
    square = root[near].astype(np.uint64) ** np.uint64(2)
    units[near], rest[near] = square // np.uint64(denominator), square % np.uint64(denominator)
    for place in np.flatnonzero(~near):
        units[place], rest[place] = divmod(int(root[place]) ** 2, denominator)
    fell = np.ones(root.size, bool)
    for unit in range(int(units.max(initial=0))):
        open_ = np.flatnonzero(fell & (units > unit))
        if not open_.size:
            break
        fell[open_] = _coin_exp(np.ones(open_.size, np.uint64), 1, bits)
    left = np.flatnonzero(fell)
    fell[left] = _coin_exp(rest[left], denominator, bits)
    return fell


def _coin_exp(numerator: NDArray[np.uint64], denominator: int, bits: Bits) -> _Flags:
    """Flip coins of probability ``exp(-numerator / denominator)``, for exponents of at most 1.

    Von Neumann's series: flip coins of probability gamma, gamma / 2, gamma / 3 … until one fails;
    the number of flips is odd with the wanted probability.
    """
    odd = np.empty(numerator.size, bool)
    going = np.arange(numerator.size)
    throw = 0
    while going.size:
        throw += 1
        fell = _coin(numerator[going], denominator * throw, bits)
        odd[going[~fell]] = throw % 2 == 1
        going = going[fell]
    return odd


def _coin(numerator: NDArray[np.uint64], denominator: int, bits: Bits) -> _Flags:
    """Flip coins of probability ``numerator / denominator``."""
    return _below(denominator, numerator.size, bits) < numerator


def _below(limit: int, count: int, bits: Bits) -> NDArray[np.uint64]:
    """Return uniform whole numbers below a limit, by rejection sampling."""
    drawn = np.array(bits(count))
    uneven = np.uint64((1 << 64) % limit)  # these extra words would make small numbers likelier
    while (again := np.flatnonzero(drawn < uneven)).size:
        drawn[again] = bits(again.size)
    return drawn % np.uint64(limit)
