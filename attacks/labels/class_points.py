"""Points of classes: the output layer's gradient as one point per class, in its rank's dimensions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.labels.combination import ROUNDING
from attacks.labels.numerical_rank import numerical_rank


class ClassPoints(NamedTuple):
    """The columns ``q`` of Dang et al. 2021 (Section 2.3), each times a positive number."""

    points: Tensor
    """One row per remaining class (K, rank), float64."""
    classes: Tensor
    """Classes of the points (K,)."""
    rank: int
    """Dimensions of the points."""
    measured: int
    """Rank by the singular values: equal to ``rank`` unless that was given."""
    accuracy: float
    """Error of the points from the decomposition, as unit vectors."""
    notes: list[str]


def class_points(
    rows: Tensor,
    *,
    weights: Tensor | None = None,
    rank: int | None = None,
    samples: int | None = None,
    scale_rows: bool = True,
) -> ClassPoints:
    """Return the points of all classes whose row (classes, features) is not zero.

    With ``scale_rows`` each row is first divided by the rounding to be expected of it: its own, and that of
    ``weights`` where the update is a difference of weights. A positive factor moves no
    point to the other side of a hyperplane through 0, and without it the rounding of a large row
    buries what the small ones tell: a ResNet50 in eval mode then shows too low a rank. But of a gradient
    that a defense has rewritten, the singular vectors are others: small rows, which it harms most,
    weigh as much as large ones. Without ``scale_rows`` all are divided by the largest rounding.
    """
    classes = rows.any(dim=1).nonzero().flatten()
    empty = len(rows) - len(classes)
    notes = [f"nothing is left of the rows of {empty} classes: they are not judged"] if empty else []
    kept = rows[classes].double()
    if kept.numel() == 0:
        return ClassPoints(kept.new_zeros(0, 0), classes, 0, 0, ROUNDING, notes)
    sizes = _row_sizes(kept, weights, classes)
    kept = kept / (torch.finfo(rows.dtype).eps * (sizes if scale_rows else sizes.max())[..., None])
    vectors, singular, _ = torch.linalg.svd(_square(kept), full_matrices=False)
    rounding = 0.5 * (math.sqrt(kept.shape[0]) + math.sqrt(kept.shape[1]))
    # for double-precision entries, the decomposition's own rounding is at least as large
    decomposed = 2 * torch.finfo(kept.dtype).eps * float(singular[0])
    inferred = numerical_rank(singular, max(rounding, decomposed), samples)
    if rank is None:
        rank = inferred.number
        notes += inferred.notes
    rank = min(rank, len(singular))
    points = vectors[:, :rank]
    lengths = points.norm(dim=1)
    # a point at 0 is on every hyperplane
    there = lengths > ROUNDING
    spread = float(singular[0] / (singular[rank - 1] * lengths[there].min()))
    error = 8 * torch.finfo(points.dtype).eps * spread
    accuracy = min(max(error, ROUNDING), 1e-6)
    return ClassPoints(points[there], classes[there], rank, inferred.number, accuracy, notes)


def _row_sizes(rows: Tensor, weights: Tensor | None, classes: Tensor) -> Tensor:
    """Return the root mean square of the rounding in each row."""
    largest = rows.abs().amax(dim=1, keepdim=True)  # the squares of small numbers would vanish
    sizes = largest.squeeze(1) * (rows / largest).square().mean(dim=1).sqrt()
    return sizes if weights is None else sizes.hypot(weights[classes].double().square().mean(dim=1).sqrt())


def _square(matrix: Tensor) -> Tensor:
    """Return a matrix with the same left singular vectors and values, and no more columns than rows."""
    return torch.linalg.qr(matrix.T, mode="r").R.T if matrix.shape[1] > matrix.shape[0] else matrix
