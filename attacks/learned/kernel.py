"""Kernel ridge regression; leaving one out, in closed form, chooses its settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHARPNESS = (0.5, 1.0, 3.0, 8.0, 20.0)
"""Rates at which the kernel ``exp(rate (cos - 1))`` falls with the angle of two rows."""
PENALTIES = tuple(10.0**power for power in range(-4, 2))


@dataclass(frozen=True)
class Regression:
    """A fitted regression from rows of unit length to answers."""

    rows: Tensor
    weights: Tensor
    mean: Tensor
    sharpness: float
    error: float
    """Weighted mean square by which answers that were left out were missed, relative to their variance."""

    def __call__(self, row: Tensor) -> Tensor:
        """Return the answers (M,) for one more row."""
        kernel = torch.exp(self.sharpness * (self.rows @ row - 1)).double()
        return kernel @ self.weights + self.mean


def fit(rows: Tensor, answers: Tensor, importance: Tensor) -> Regression:
    """Fit answers (N, M) by rows (N, P) of at most unit length; errors count by ``importance`` (M,)."""
    answers, importance = answers.double(), importance.double()
    mean = answers.mean(dim=0)
    centred = answers - mean
    whole = float((centred.square() @ importance).mean())
    cosines = (rows @ rows.t()).double()
    best: tuple[float, float, Tensor] | None = None
    for sharpness in SHARPNESS:
        values, vectors = torch.linalg.eigh(torch.exp(sharpness * (cosines - 1)))
        turned = vectors.t() @ centred
        for penalty in PENALTIES:
            shrink = 1 / (values.clamp_min(0) + penalty)
            weights = vectors @ (shrink[:, None] * turned)
            # leaving out i: the weight over the inverse's diagonal
            missed = weights / (vectors.square() @ shrink)[:, None]
            error = float((missed.square() @ importance).mean())
            if best is None or error < best[0]:
                best = error, sharpness, weights
    assert best is not None
    return Regression(rows, best[2], mean, best[1], best[0] / max(whole, torch.finfo(torch.float64).tiny))
