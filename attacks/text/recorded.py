"""Optimiser that records the iterate after chosen numbers of steps."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from attacks.optimisation.optimisers import Evaluate, Optimiser, Variables


class Recorded:
    """Steps as ``inner`` does."""

    def __init__(self, inner: Optimiser, after: Collection[int]) -> None:
        self.inner = inner
        self.after = after
        self.taken = 0
        self.seen: dict[int, Variables] = {}
        """The variables of all problems, by the number of steps that led there."""

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables after one step."""
        if self.taken in self.after:
            self.seen[self.taken] = {name: value.detach().clone() for name, value in variables.items()}
        self.taken += 1
        return self.inner.step(variables, evaluate, lr)

    def reset(self, which: Tensor) -> None:
        """Forget the state of the problems in the boolean mask ``which``, but not where they were."""
        self.inner.reset(which)
