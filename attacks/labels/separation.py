"""Points that a hyperplane through 0 separates from all others: exact, mostly without a linear programme.

Every answer has a proof. Yes: a hyperplane that does it, checked on all points. No: a sum
with non-negative weights that vanishes. A point without a weight in it cannot be parted, since the
others would all have to be on one side of a hyperplane: one sum answers for many
points, for a corner of the linear programme has no more weights than dimensions, plus one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attacks.labels.combination import (
    ROUNDING,
    Array,
    cheapest_combination,
    closed,
    nearest_combination,
    proven_support,
)
from attacks.labels.hyperplanes import guess_planes, margins

_FEW = 500
"""Number of the longest points tried first, where there are far more."""


class Separation(NamedTuple):
    """Separability of each point from the others."""

    parted: Tensor
    """False only with a proof that no margin above the accuracy exists."""
    margins: Tensor
    """Margin of the hyperplane found, for unit vectors; 0 without one."""
    unproven: int
    """Number of separated points without a proven hyperplane: their margin is as small as the accuracy."""


def separate(points: Tensor, accuracy: float = ROUNDING) -> Separation:
    """Return for each non-zero row ``q`` of ``points`` whether some ``r`` has ``r q < 0`` for it alone.

    For all others ``r q > 0`` must hold. A point with a margin above ``accuracy``, that of
    the points as unit vectors, is never taken for one that cannot be parted.
    """
    sizes = points.norm(dim=1, keepdim=True)
    search = _Search(points / sizes, accuracy)
    few = max(_FEW, 4 * points.shape[1])
    if 4 * few < len(points):
        # a sum of some is one of all; it has to have every label, and labels make the longest points
        search.rule_out(sizes.flatten().topk(few).indices)
    if search.unsettled().any():
        search.rule_out(torch.arange(len(points)))
    for point in search.unsettled().nonzero().flatten().tolist():
        search.settle(point)
    return Separation(search.open, search.margins, int(search.unsettled().sum()))


class _Search:
    """Current knowledge of the points."""

    def __init__(self, points: Tensor, accuracy: float) -> None:
        self.points, self.accuracy = points, accuracy
        self.open = torch.ones(len(points), dtype=torch.bool)
        """Without a proof that it cannot be parted."""
        self.margins = points.new_zeros(len(points))
        self.below_all: Array | None = None
        """A hyperplane with all points above it, if there is one: not for a softmax, whose rows sum to 0."""

    def unsettled(self) -> Tensor:
        return self.open & (self.margins <= self.accuracy)

    def rule_out(self, among: Tensor) -> None:
        """Rule points out by sums ``among`` some that vanish, and find hyperplanes for what remains."""
        vectors = self.points[among].numpy()
        found = cheapest_combination(*closed(vectors))
        if found is None:
            return
        if (self.points.numpy() @ found.r).min() > self.accuracy * np.linalg.norm(found.r):
            self.below_all = found.r
            return
        if not self._exclude(among, found.weights[:-1]):
            return
        weights = found.weights[:-1]
        # first the least weight on all that is open; then, as in reweighted l1, on what needs the least
        for charge in (np.ones_like(weights), 1 / weights.clip(min=1e-6)):
            if self._part():
                return
            still = self.open[among].numpy()
            found = cheapest_combination(vectors, np.where(still, charge / charge.max(), 0.0))
            if found is not None:
                self._exclude(among, found.weights)
        self._part()

    def settle(self, point: int) -> None:
        """Find a proof, either way, for an undecided point."""
        if not self.unsettled()[point]:
            return
        vectors = self.points.numpy().copy()
        vectors[point] *= -1
        if self.below_all is not None:
            found = nearest_combination(vectors, point, self.below_all)
        else:
            found = cheapest_combination(*closed(vectors))
        if found is None:
            return
        self._check(torch.from_numpy(found.r)[None], torch.tensor([point]))
        support = proven_support(vectors, found.weights[: len(vectors)], self.accuracy)
        if self.margins[point] > self.accuracy or support is None:
            return
        if support[point]:
            self.open[point] = False  # its sign was turned: the sum says nothing of others
        else:
            self.open &= torch.from_numpy(support)

    def _exclude(self, among: Tensor, weights: Array) -> bool:
        support = proven_support(self.points[among].numpy(), weights, self.accuracy)
        if support is not None:
            self.open &= torch.zeros_like(self.open).index_fill(0, among[torch.from_numpy(support)], True)
        return support is not None

    def _part(self) -> bool:
        """Return whether every open point has a hyperplane."""
        for planes, alone in guess_planes(self.points, self.open.nonzero().flatten()):
            self._check(planes, alone)
            if not self.unsettled().any():
                return True
        return False

    def _check(self, planes: Tensor, alone: Tensor) -> None:
        reached = margins(planes, self.points, alone)
        self.margins[alone] = torch.maximum(self.margins[alone], reached.where(reached > self.accuracy, 0.0))
