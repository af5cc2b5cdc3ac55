"""Rounding of a clipped vector to whole numbers, with a bound on its length afterwards.

Each entry is rounded up or down at random and keeps its expectation. That can lengthen a vector, and a longer
vector needs more noise. So the rounding is drawn again until the length is within a bound
(Kairouz, Liu and Steinke, ICML 2021, Proposition 22). The bound depends on settings alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fl_app.privacy.discrete_gaussian import Bits, system_bits

BETA = math.exp(-0.5)
"""Largest probability that a rounding is drawn again; the authors' choice. It biases the mean slightly."""


def rounded_norm(norm: float, size: int, beta: float = BETA) -> float:
    """Return the largest length, in steps, of a rounded vector that was at most ``norm`` long."""
    if not norm > 0 or size < 1 or not 0 < beta < 1:
        raise ValueError(
            f"rounded_norm: expected norm > 0, size >= 1 and beta in (0, 1), got {norm}, {size}, {beta}"
        )
    likely = norm**2 + size / 4 + math.sqrt(2 * math.log(1 / beta)) * (norm + math.sqrt(size) / 2)
    return math.sqrt(min(likely, (norm + math.sqrt(size)) ** 2))


def round_conditionally(
    values: NDArray[np.float64], norm: float, beta: float = BETA, bits: Bits = system_bits
) -> NDArray[np.int64]:
    """Round a vector of length at most ``norm`` at random; the result never exceeds `rounded_norm`."""
    largest = rounded_norm(norm, values.size, beta) ** 2
    floor = np.floor(values)
    rest = values - floor
    while True:
        up = (bits(values.size) >> np.uint64(11)).astype(np.float64) * 2.0**-53 < rest
        rounded = (floor + up).astype(np.int64)
        if sum(int(x) ** 2 for x in rounded[np.flatnonzero(rounded)]) <= largest:
            return rounded
