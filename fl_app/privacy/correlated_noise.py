"""Noise that is correlated over rounds, for clients that take turns: DP-FTRL with a banded factor.

A model is the sum of all rounds so far, and so is its noise. Each round therefore cancels a part of the
noise of earlier rounds (matrix factorisation; Denisov et al., 2022). The factor C is the banded square
root of the matrix of prefix sums (Kalinin and Lampert, 2024): a lower triangular Toeplitz matrix with the
first coefficients of ``(1 - x)^(-1/2)``. With fresh noise z, the noise of the rounds is ``C^-1 z``.

Given the releases so far, a round releases row t of ``C x + z``, where ``x`` are the sums of the clients'
vectors. The number of bands equals the rounds between two turns of a client, so a row has at most one vector
of each client. A client whose turn was j rounds ago has the weight ``c_j``. Each row is a Gaussian mechanism;
the squares of ``c_j / sigma`` add up, however the vectors depend on earlier releases.
"""

from __future__ import annotations

import math
from functools import cache

from torch import Tensor


@cache
def band(separation: int) -> tuple[float, ...]:
    """Return the coefficients of the factor, from the diagonal downwards."""
    if separation < 1:
        raise ValueError(f"band: separation must be at least 1, got {separation}")
    coefficients = [1.0]
    for j in range(1, separation):
        coefficients.append(coefficients[-1] * (2 * j - 1) / (2 * j))
    return tuple(coefficients)


@cache
def squared_sensitivity(separation: int, rounds: int) -> float:
    """Return the squared sensitivity of the given rounds, in squared clipping bounds.

    The maximum belongs to a client that takes part in the first and every ``separation``-th later round.
    """
    squares = [coefficient**2 for coefficient in band(separation)]
    whole, rest = divmod(rounds, separation)
    return math.fsum(squares) * whole + math.fsum(squares[:rest])


class NoiseStream:
    """Noise of successive rounds. ``past`` must stay secret: an observer could subtract it."""

    def __init__(self, separation: int) -> None:
        self._band = band(separation)
        self.past: list[Tensor] = []
        """The noise of the last rounds, oldest first."""

    def advance(self, fresh: Tensor) -> Tensor:
        """Return the noise of the next round, given independent noise of the same deviation everywhere."""
        noise = fresh.clone()
        for coefficient, earlier in zip(self._band[1:], reversed(self.past), strict=False):
            noise -= coefficient * earlier
        kept = len(self._band) - 1
        self.past = [*self.past, noise][-kept:] if kept else []
        return noise
