"""Non-negative combinations of vectors that sum to 0.

By Gordan's theorem either such a combination exists or a vector ``r`` with ``r v > 0`` for all
vectors ``v``. Either one proves that the other cannot be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

ROUNDING = 1e-12
"""Rounding error of sums and products of unit vectors in float64."""
_TOLERANCE = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}

Array = NDArray[np.float64]


class Combination(NamedTuple):
    """Weights of a sum that vanishes or nearly does, and the ``r`` that proves that it can do no better."""

    weights: Array
    r: Array


def cheapest_combination(vectors: Array, cost: Array) -> Combination | None:
    """Return weights >= 0 of sum 1 with ``weights @ vectors = 0`` and the least cost, or None if none exist.

    A corner of the linear programme: no more weights than dimensions, plus one, are not zero.
    With the least cost ``m``, ``r v >= m - cost`` holds for each vector ``v``.
    """
    found = linprog(
        cost,
        A_eq=np.vstack([vectors.T, np.ones(len(vectors))]),
        b_eq=np.append(np.zeros(vectors.shape[1]), 1.0),
        method="highs-ds",
        options=_TOLERANCE,
    )
    return Combination(found.x, -found.eqlin.marginals[:-1]) if found.status == 0 else None


def nearest_combination(vectors: Array, last: int, above: Array) -> Combination | None:
    """Return the weights >= 0, with a 1 for ``last``, whose sum is nearest to 0.

    ``above`` has a positive product with all vectors but the last. Where the sum does
    not vanish, it has none below 0 with any vector; leaning a little to ``above``, all are positive. For few
    dimensions this is many times faster than a linear programme.
    """
    others = np.delete(vectors, last, axis=0)
    try:
        weights, distance = nnls(others.T, -vectors[last])
    except RuntimeError:  # too many iterations
        return None
    rest = weights @ others + vectors[last]
    lean = distance**2 / max(2 * abs(float(above @ vectors[last])), ROUNDING)
    return Combination(np.insert(weights, last, 1.0), rest + lean * above)


def closed(vectors: Array) -> tuple[Array, Array]:
    """Return the vectors with one more, with which a sum vanishes, and a cost for that one alone."""
    closing = -vectors.sum(axis=0)
    closing /= max(float(np.linalg.norm(closing)), ROUNDING)
    return np.vstack([vectors, closing]), np.append(np.zeros(len(vectors)), 1.0)


def proven_support(vectors: Array, weights: Array, accuracy: float) -> NDArray[np.bool_] | None:
    """Return which unit vectors make a sum vanish to ``accuracy``, if those with a weight do.

    The solver's weights may be off by its tolerance: then they are solved for once more.
    """
    support = weights > 1e-11
    for trial in (weights.clip(min=0.0) * support, _solved_again(vectors, support)):
        if trial.sum() > 0 and np.linalg.norm(trial @ vectors) <= accuracy * trial.sum():
            return trial > 0
    return None


def _solved_again(vectors: Array, support: NDArray[np.bool_]) -> Array:
    used = vectors[support]
    target = np.append(np.zeros(vectors.shape[1]), 1.0)
    weights = np.zeros(len(vectors))
    weights[support] = np.linalg.lstsq(np.vstack([used.T, np.ones(len(used))]), target)[0].clip(min=0.0)
    return weights
