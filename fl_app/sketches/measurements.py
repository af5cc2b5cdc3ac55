"""FL-CS: random linear measurements of a vector, and a sparse vector that explains them.

Kerkouche et al., "Compression boosts differentially private federated learning"
(EuroS&P 2021), the baseline of the paper on FL-TOP. The measurements are
``y = R C D x``: random signs, a cosine transform, a random choice of its rows. No
matrix is held. They are linear, so the mean of measurements is the measurement of
the mean, also under secure aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.fft import dct, idct
from torch import Tensor
from torch.nn.functional import softshrink

from fl_app.wire.random_set import draw_coordinates, random_words


@dataclass(frozen=True, eq=False)
class PartialCosines:
    """The operator. Its norm is at most 1.

    The vector is padded with zeros to a length whose transform is fast: 1,663,370
    has a prime factor of 166,337, which makes it nine times slower.
    """

    n: int
    length: int
    rows: np.ndarray
    signs: np.ndarray

    def measure(self, vector: Tensor) -> Tensor:
        """Return the measurements of a vector, in its type."""
        _check("measure", "vector", vector, self.n)
        padded = np.zeros(self.length, dtype=vector.cpu().numpy().dtype)
        padded[: self.n] = vector.detach().cpu().numpy() * self.signs
        return torch.from_numpy(dct(padded, norm="ortho")[self.rows]).to(vector.device)

    def transpose(self, measurements: Tensor) -> Tensor:
        """Return the transposed operator's image of ``measurements``: a vector of ``n`` entries."""
        _check("transpose", "measurements", measurements, len(self.rows))
        spectrum = np.zeros(self.length, dtype=measurements.cpu().numpy().dtype)
        spectrum[self.rows] = measurements.detach().cpu().numpy()
        return torch.from_numpy(idct(spectrum, norm="ortho")[: self.n] * self.signs).to(measurements.device)


@dataclass(frozen=True)
class Reconstruction:
    """A sparse vector, and how it was reached."""

    vector: Tensor
    iterations: int
    transforms: int
    """Nearly all of the cost."""
    misfit: float
    """The distance of its measurements from the given ones, over the norm of those."""
    settled: bool
    """True if the last iteration moved it by less than the tolerance."""


def draw_measurements(n: int, count: int, seed: int) -> PartialCosines:
    """Return ``count`` random measurements of vectors of ``n`` entries; both ends draw the same ones."""
    if not 1 <= count <= n:
        raise ValueError(f"draw_measurements: count must be in 1..{n}, got {count}")
    length = _smooth_length(n)
    bits = np.unpackbits(random_words(-(-n // 64), seed, "signs").view(np.uint8))[:n]
    signs = (1 - 2 * bits.astype(np.int8)).astype(np.float32)
    return PartialCosines(n, length, draw_coordinates(length, count, seed).numpy(), signs)


def reconstruct(
    operator: PartialCosines,
    measurements: Tensor,
    *,
    threshold: float = 0.01,
    decay: float = 0.85,
    iterations: int = 200,
    tolerance: float = 1e-5,
) -> Reconstruction:
    """Find a sparse vector with these measurements by iterative soft thresholding.

    It minimises half the squared misfit plus a threshold times the sum of all
    magnitudes. An iteration is a gradient step on the misfit, after which all entries
    move towards 0. Two things make it some ten times as quick as the plain form, and leave
    its result as it is (Wright, Nowak and Figueiredo, 2009): the threshold falls by
    ``decay`` from the largest entry of the back-projection to ``threshold`` of that, so
    that large entries are found first, and the step is as long as the last one's
    curvature allows: a sparse vector's is the share of the rows that are there.
    """
    for what, value in (("threshold", threshold), ("decay", decay)):
        if not 0 < value < 1:
            raise ValueError(f"reconstruct: {what} must be in (0, 1), got {value}")
    if iterations < 1:
        raise ValueError(f"reconstruct: iterations must be at least 1, got {iterations}")
    back = operator.transpose(measurements)
    top, least = float(back.abs().max()), len(measurements) / operator.length / 2
    vector, left = torch.zeros_like(back), measurements
    done, transforms, settled, level, curvature = 0, 1, top == 0, top, 2 * least
    while done < iterations and not settled:
        level = max(threshold * top, decay * level)
        pull, cost = operator.transpose(left), _cost(left, vector, level)
        while True:
            moved = softshrink(vector + pull / curvature, level / curvature)
            still_left = measurements - operator.measure(moved)
            transforms += 1
            # no curvature is above 1, the operator's norm: there the cost cannot rise
            if curvature >= 1 or _cost(still_left, moved, level) <= cost:
                break
            curvature = min(1.0, 2 * curvature)
        step, change = _norm(moved - vector), _norm(still_left - left)
        vector, left, done, transforms = moved, still_left, done + 1, transforms + 1
        settled = level <= threshold * top and step <= tolerance * _norm(vector)
        curvature = min(1.0, max(least, (change / step) ** 2)) if step else 1.0
    misfit = _norm(left) / _norm(measurements) if top else 0.0
    return Reconstruction(vector, done, transforms, misfit, settled)


def _cost(left: Tensor, vector: Tensor, level: float) -> float:
    return _norm(left) ** 2 / 2 + level * float(vector.abs().sum())


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _smooth_length(n: int) -> int:
    """Return the least number of at least ``n`` without prime factors above 5.

    Not scipy's own answer to this question: it may change, and both ends must agree.
    """
    best = 1 << (n - 1).bit_length()
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = -(-n // threes)
            best = min(best, threes << (twos - 1).bit_length())
            threes *= 3
        fives *= 5
    return best


def _check(who: str, what: str, vector: Tensor, n: int) -> None:
    if vector.shape != (n,) or vector.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{who}: {what} must be {n} floats of 32 or 64 bits, got {vector.dtype} {tuple(vector.shape)}"
        )
