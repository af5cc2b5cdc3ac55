"""Ridge regression on few long rows, by their inner products; the penalty is chosen by leaving one out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**power for power in range(-4, 4))


@dataclass(frozen=True)
class Ridge:
    """A fitted regression of answers ±1."""

    rows: Tensor
    """Centred examples (N, P) of unit length."""
    centre: Tensor
    weights: Tensor
    """One weight for each example."""
    level: float
    left_out: Tensor
    """Prediction of each example by all others (N,)."""

    def __call__(self, row: Tensor) -> float:
        """Return the prediction for one more row; above 0 is a yes."""
        return float(self.rows @ (unit(row) - self.centre) @ self.weights) + self.level


def unit(row: Tensor) -> Tensor:
    """Return a row of length 1 in double precision: how large an update is says little of its samples."""
    row = row.double()
    scaled: Tensor = row / row.norm().clamp_min(1e-30)
    return scaled


def fit_ridge(rows: Tensor, answers: Tensor) -> Ridge:
    """Fit answers (N,), true or false, by examples (N, P); the penalty predicts left-out ones best."""
    signs = answers.double() * 2 - 1
    if not 0 < int(answers.sum()) < len(answers):
        raise ValueError("fit_ridge: expected examples with and without the property")
    rows = torch.stack([unit(row) for row in rows])
    centre = rows.mean(dim=0)
    rows = rows - centre
    level = float(signs.mean())
    gram = rows @ rows.T
    scale = float(gram.diagonal().mean().clamp_min(1e-30))
    values, vectors = torch.linalg.eigh(gram)
    least, best = float("inf"), (signs, signs)
    for penalty in PENALTIES:
        # leaving out i: residual over 1 - H_ii, in closed form
        inverse = vectors @ torch.diag(1 / (values.clamp_min(0) + penalty * scale)) @ vectors.T
        weights = inverse @ (signs - level)
        shrink = 1 - (gram @ inverse).diagonal() - 1 / len(rows)
        residuals = (signs - level - gram @ weights) / shrink.clamp_min(1e-9)
        error = float(residuals.square().mean())
        if error < least:
            least, best = error, (weights, signs - residuals)
    return Ridge(rows, centre, best[0], level, best[1])
