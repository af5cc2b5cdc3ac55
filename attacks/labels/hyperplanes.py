"""Hyperplanes through 0, each with only one point below it, for many points at once.

They are guesses; a positive margin proves that one is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_WIDTHS = torch.logspace(-7, 0, 15, dtype=torch.float64)
_HEIGHTS = (1.0, 0.3, 0.1, 0.03, 0.01)
_NEWTON_STEPS = 10
_MOST_FREE = 64
_TRIES = 4


def margins(planes: Tensor, points: Tensor, alone: Tensor) -> Tensor:
    """Return the least distance by which plane ``i`` keeps point ``alone[i]`` below and all others above."""
    return _margins(_signed(planes @ points.T, alone), planes)


def guess_planes(points: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield planes and the points that they are for, supposing that ``labels`` are those of a softmax.

    Then all other points are negative sums of these, and lie above a plane that has one
    label below 0 and the others on it. A point among ``labels`` that is none itself makes the
    others positive sums of it: the most positive one is left out, and the rest tried again.
    """
    for _ in range(_TRIES):
        inverse = torch.linalg.pinv(points[labels]).T
        yield _solve(inverse, points, labels), labels
        coordinates = inverse @ points.mean(dim=0)
        if len(labels) == 1 or coordinates.max() <= 0:
            return
        labels = labels[torch.arange(len(labels)) != coordinates.argmax()]


def _solve(inverse: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    """Lift the other labels off the plane by as much as gives the best margin."""
    below, above = _tilt(-inverse, points, labels), inverse.sum(dim=0) - inverse
    at_zero, lift = (_signed(planes @ points.T, labels) for planes in (below, above))
    reached = [_margins(at_zero + width * lift, below + width * above) for width in _WIDTHS]
    return below + _WIDTHS[torch.stack(reached).argmax(dim=0)][:, None] * above


def _tilt(planes: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    """Turn the planes about the span of the labels until all other points are above.

    Where labels repeat, they are fewer than the dimensions, and some directions are free. Newton's
    method on the squared hinge loss, all planes at once, for several heights to reach.
    """
    if not 0 < points.shape[1] - len(labels) <= _MOST_FREE or len(labels) == len(points):
        return planes
    free = torch.linalg.svd(points[labels]).Vh[len(labels) :]
    others = points[torch.ones(len(points), dtype=torch.bool).index_fill(0, labels, False)]
    moves = others @ free.T
    squares = (moves[:, :, None] * moves[:, None, :]).flatten(1)
    steady = 1e-9 * moves.square().sum() * torch.eye(len(free), dtype=moves.dtype)
    start = planes @ others.T
    typical = start.abs().median(dim=1, keepdim=True).values
    best, highest = planes, start.amin(dim=1) / planes.norm(dim=1)
    for height in _HEIGHTS:
        turn = moves.new_zeros(len(planes), len(free))
        for _ in range(_NEWTON_STEPS):
            missing = (height * typical - start - turn @ moves.T).clamp(min=0)
            curvature = ((missing > 0).to(moves.dtype) @ squares).unflatten(1, (len(free), -1)) + steady
            turn = turn + torch.linalg.solve(curvature, missing @ moves)
        turned = planes + turn @ free
        reached = (turned @ others.T).amin(dim=1) / turned.norm(dim=1)
        better = reached > highest
        best = torch.where(better[:, None], turned, best)
        highest = torch.where(better, reached, highest)
    return best


def _margins(distances: Tensor, planes: Tensor) -> Tensor:
    lengths: Tensor = planes.norm(dim=1)
    return distances.amin(dim=1) / lengths.clamp(min=torch.finfo(planes.dtype).tiny)


def _signed(distances: Tensor, alone: Tensor) -> Tensor:
    rows = torch.arange(len(alone))
    distances[rows, alone] *= -1
    return distances
