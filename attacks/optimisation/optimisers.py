"""Optimisers for a stack of independent problems, each with its own state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Variables = dict[str, Tensor]
"""Unknowns of a search by name; the first axis of every tensor counts the problems."""
Evaluate = Callable[[Variables], tuple[Tensor, Variables]]
"""From variables to the objective (P,) and its gradient."""


class Optimiser(Protocol):
    """Moves every problem once; evaluates its present point first, then perhaps trials (a line search)."""

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables: ...

    def reset(self, which: Tensor) -> None:
        """Forget the state of the problems in the boolean mask ``which``."""
        ...


class Adam:
    """Adam, on the signs of the gradient if ``signed`` (as Geiping et al. 2020 use it)."""

    def __init__(self, *, signed: bool = False, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8):
        self.signed = signed
        self.betas = betas
        self.eps = eps
        self.moments: dict[str, tuple[Tensor, Tensor]] = {}
        self.count: Tensor | None = None

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables after one step."""
        values, gradients = evaluate(variables)
        self.count = torch.ones_like(values) if self.count is None else self.count + 1
        return {
            name: value - lr * self._direction(name, gradients[name], self.count)
            for name, value in variables.items()
        }

    def reset(self, which: Tensor) -> None:
        """Forget the moments and the step count of some problems."""
        if self.count is not None:
            self.count = self.count.masked_fill(which, 0)
        self.moments = {
            name: tuple(m.masked_fill(_like(which, m), 0) for m in pair)  # type: ignore[misc]
            for name, pair in self.moments.items()
        }

    def _direction(self, name: str, gradient: Tensor, count: Tensor) -> Tensor:
        if self.signed:
            gradient = gradient.sign()
        zero = torch.zeros_like(gradient)
        first, second = self.moments.get(name, (zero, zero))
        first = torch.lerp(gradient, first, self.betas[0])
        second = torch.lerp(gradient.square(), second, self.betas[1])
        self.moments[name] = (first, second)
        # each problem counts its own steps, because one that was reset starts its averages anew
        bias1 = 1 - self.betas[0] ** _like(count, gradient)
        bias2 = 1 - self.betas[1] ** _like(count, gradient)
        return (first / bias1) / ((second / bias2).sqrt() + self.eps)


def _like(per_problem: Tensor, tensor: Tensor) -> Tensor:
    return per_problem.view(-1, *[1] * (tensor.ndim - 1))
