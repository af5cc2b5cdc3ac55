"""Optimiser that mixes the slope with that of a point uphill, which leads to flatter minima."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.optimisation.optimisers import Evaluate, Optimiser, Variables


class Regularised:
    """Steps as ``inner`` does, on ``(1 - share)`` of the slope and ``share`` of that a step uphill.

    The point uphill lies ``reach`` (root mean square of the step) along the slope of each problem.
    """

    def __init__(self, inner: Optimiser, *, share: float, reach: float) -> None:
        self.inner = inner
        self.share = share
        self.reach = reach

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables after one step, of two evaluations."""

        def mixed(here: Variables) -> tuple[Tensor, Variables]:
            values, slopes = evaluate(here)
            uphill = {name: value + self.reach * _unit(slopes[name]) for name, value in here.items()}
            _, above = evaluate(uphill)
            return values, {
                name: (1 - self.share) * slope + self.share * above[name] for name, slope in slopes.items()
            }

        return self.inner.step(variables, mixed, lr)

    def reset(self, which: Tensor) -> None:
        """Forget the state of the problems in the boolean mask ``which``."""
        self.inner.reset(which)


def _unit(slope: Tensor) -> Tensor:
    """Return slopes with a root mean square of 1 for each problem."""
    size = slope.flatten(1).square().mean(dim=1).sqrt().clamp_min(torch.finfo(slope.dtype).tiny)
    return slope / size.view(-1, *[1] * (slope.ndim - 1))
