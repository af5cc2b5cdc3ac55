"""Ranking metrics for two classes of which one is rare."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Return the probability that a sample of class 1 scores higher than one of class 0; ties count half.

    This is the area under the ROC curve, by the ranks of the scores.
    """
    from scipy.stats import rankdata  # takes a second to import, which client processes avoid

    ranks, positive = rankdata(_numbers("auroc", scores, labels)), labels.detach().cpu().numpy() == 1
    ones, zeros = int(positive.sum()), int((labels == 0).sum())
    if ones + zeros != len(labels) or not ones or not zeros:
        raise ValueError(f"auroc: labels must be 0 and 1, both of them, got {labels.unique().tolist()}")
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def balanced_accuracy(predictions: Tensor, labels: Tensor) -> float:
    """Return the mean recall over the classes that occur in ``labels``."""
    right = _numbers("balanced_accuracy", predictions, labels) == labels.detach().cpu().numpy()
    kinds = labels.detach().cpu().numpy()
    return float(np.mean([right[kinds == kind].mean() for kind in np.unique(kinds)]))


def _numbers(who: str, values: Tensor, labels: Tensor) -> np.ndarray:
    if values.shape != labels.shape or values.ndim != 1 or len(values) == 0:
        raise ValueError(
            f"{who}: expected one value a label, at least one, "
            f"got shapes {tuple(values.shape)} and {tuple(labels.shape)}"
        )
    numbers = values.detach().cpu().numpy()
    if np.isnan(numbers).any():
        raise ValueError(f"{who}: the values hold NaN and have no order")
    return numbers
