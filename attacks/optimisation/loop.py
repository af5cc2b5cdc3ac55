"""The loop under every optimisation attack: step, project, keep the best iterate, mend what breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import StepListener
from attacks.optimisation.optimisers import Optimiser, Variables

Objective = Callable[[Variables], Tensor]
"""From variables to one number per problem (P,), differentiable."""
Schedule = Callable[[float], float]
"""From progress in [0, 1) to a learning rate."""
Guide = Callable[[Variables, float], Tensor]
"""From variables and progress to a further penalty each (P,): it steers the search, but does not judge it."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best iterate of every problem, by the objective evaluated on that iterate."""

    variables: Variables
    objective: Tensor
    """(P,); infinite where no iterate had a finite one."""
    steps: int
    """How many were taken before the time was up."""
    redrawn: int
    """How often a problem left the finite numbers and was started anew."""


def minimise(
    objective: Objective,
    start: Variables,
    *,
    optimiser: Optimiser,
    schedule: Schedule,
    steps: int,
    project: Callable[[Variables], Variables],
    redraw: Callable[[int], Variables],
    guide: Guide | None = None,
    time_budget: float | None = None,
    on_step: StepListener | None = None,
) -> Outcome:
    """Minimise independent problems side by side.

    ``redraw(p)`` gives a new start for problem ``p``. Steps go down the objective plus the
    ``guide``; which iterate is the best, the objective alone decides. With a ``time_budget`` in seconds
    the schedule follows whichever is further on, the steps or the clock, so that a run
    that is cut short still ends on its small learning rates.
    """
    best = _Best(start)
    broken = torch.zeros_like(best.objective, dtype=torch.bool)

    def evaluate(variables: Variables) -> tuple[Tensor, Variables]:
        nonlocal broken
        leaves = {name: value.detach().requires_grad_(True) for name, value in variables.items()}
        values = objective(leaves)
        total = values.sum() if guide is None else (values + guide(leaves, progress)).sum()
        gradients = dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
        values = values.detach()
        best.offer(variables, values)
        broken = ~_finite({**gradients, "": values})
        return values, gradients

    variables, redrawn, done, progress = project(start), 0, 0, 0.0
    began = time.monotonic()
    while done < steps:
        progress = done / steps
        if time_budget is not None:
            elapsed = time.monotonic() - began
            if elapsed >= time_budget:
                break
            progress = max(progress, elapsed / time_budget)
        variables = project(optimiser.step(variables, evaluate, schedule(progress)))
        done += 1
        lost = broken | ~_finite(variables)
        if lost.any():
            variables = project(_replace(variables, lost, redraw))
            optimiser.reset(lost)
            redrawn += int(lost.sum())
        if on_step is not None:
            on_step(done, steps, float(best.objective.min()))
    # no gradient of the objective is asked for here, but the objective itself contains one
    best.offer(variables, objective(variables).detach())
    return Outcome(best.variables, best.objective, done, redrawn)


def step_decay(
    lr: float, milestones: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8), factor: float = 0.1
) -> Schedule:
    """Return a schedule that multiplies ``lr`` by ``factor`` at each milestone."""
    return lambda progress: lr * factor ** sum(progress >= milestone for milestone in milestones)


class _Best:
    def __init__(self, start: Variables):
        first = next(iter(start.values()))
        self.variables = start
        self.objective = torch.full(first.shape[:1], torch.inf, dtype=first.dtype, device=first.device)

    def offer(self, variables: Variables, objective: Tensor) -> None:
        better = objective.isfinite() & (objective < self.objective)
        self.objective = torch.where(better, objective, self.objective)
        self.variables = {
            name: torch.where(better.view(-1, *[1] * (value.ndim - 1)), value.detach(), self.variables[name])
            for name, value in variables.items()
        }


def _finite(tensors: Variables) -> Tensor:
    """Return, for each problem, whether all its numbers are finite."""
    rows = [tensor.isfinite().view(len(tensor), -1).all(dim=1) for tensor in tensors.values()]
    return torch.stack(rows).all(dim=0)


def _replace(variables: Variables, which: Tensor, redraw: Callable[[int], Variables]) -> Variables:
    replaced = {name: value.detach().clone() for name, value in variables.items()}
    for problem in which.nonzero().flatten().tolist():
        for name, value in redraw(problem).items():
            replaced[name][problem] = value
    return replaced
