"""Loop of every optimisation attack: step, project, keep the best iterate, redraw broken guesses."""

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
"""From variables and progress to a penalty each (P,), which steers the search but does not select."""

FALL = 0.9
"""A search is stuck if its objective does not fall to this share of itself within its patience."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best iterate of every problem, by the objective evaluated on that iterate."""

    variables: Variables
    objective: Tensor
    """(P,); infinite where no iterate had a finite one."""
    steps: int
    """Steps taken before all problems were solved, the time was up or the search was stopped."""
    redrawn: int
    """Restarts after an objective that was not finite."""
    stuck: Tensor
    """Restarts of each problem because its objective no longer fell (P,)."""
    solved_after: Tensor
    """Steps until each problem fell below the target objective (P,); -1: it did not."""

    @property
    def solved(self) -> Tensor:
        """Mask of the solved problems (P,)."""
        return self.solved_after >= 0


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
    narrow: Callable[[Tensor], Objective] | None = None,
    stop_below: float | None = None,
    patience: int | None = None,
    time_budget: float | None = None,
    until: Callable[[Variables], bool] | None = None,
    on_step: StepListener | None = None,
    on_iterate: Callable[[int, Variables], None] | None = None,
) -> Outcome:
    """Minimise independent problems side by side.

    ``redraw(p)`` gives a new start for problem ``p``: when its numbers are no longer finite,
    or when in ``patience`` steps its objective has hardly fallen. Steps go down the objective
    plus the ``guide``; which iterate is the best, the objective alone decides. A problem below
    ``stop_below`` is solved and stays as it is; ``narrow(rows)``, the objective of the other
    problems alone, then saves evaluating it. With a ``time_budget`` in seconds
    the schedule follows whichever is further on, the steps or the clock, so that a run
    that is cut short still ends on its small learning rates. The search is over as soon as
    ``until``, which sees the variables after each step, says so. ``on_iterate`` gets the
    number of steps done and where they led, the start included.
    """
    best, fall = _Best(start), _Fall(start, patience)
    solved, stuck = torch.zeros_like(fall.since, dtype=torch.bool), torch.zeros_like(fall.since)
    solved_after = torch.full_like(fall.since, -1)
    finite: list[Tensor] = []

    def evaluate(variables: Variables) -> tuple[Tensor, Variables]:
        if narrow is not None and guide is None and solved.any():
            values, gradients = _without(solved, variables, best.objective, narrow)
        else:
            values, gradients = _slopes(objective, variables, guide, progress)
        best.offer(variables, values)
        fall.note(values)
        finite.append(_finite({**gradients, "": values}))
        return values, gradients

    variables, redrawn, done, progress = project(start), 0, 0, 0.0
    began = time.monotonic()
    if on_iterate is not None:
        on_iterate(0, variables)
    while done < steps and not solved.all():
        progress = done / steps
        if time_budget is not None:
            elapsed = time.monotonic() - began
            if elapsed >= time_budget:
                break
            progress = max(progress, elapsed / time_budget)
        finite.clear()
        variables = project(optimiser.step(variables, evaluate, schedule(progress)))
        done += 1
        if stop_below is not None:
            solved = best.objective < stop_below
            solved_after = _first(solved, solved_after, done)
            variables = _choose(solved, best.variables, variables)
        # the first evaluation alone: later ones are trials of a line search, which copes with theirs
        lost = ~(finite[0] & _finite(variables)) & ~solved
        stalled = fall.has_ended() & ~lost & ~solved
        redrawn, stuck = redrawn + int(lost.sum()), stuck + stalled
        if (anew := lost | stalled).any():
            variables = project(_replace(variables, anew, redraw))
            optimiser.reset(anew)
            fall.forget(anew)
        if on_step is not None:
            on_step(done, steps, float(best.objective.min()))
        if on_iterate is not None:
            on_iterate(done, variables)
        if until is not None and until(variables):
            break
    if not solved.all():
        # no gradient of the objective is asked for here, but the objective itself contains one
        best.offer(variables, objective(variables).detach())
        if stop_below is not None:
            solved_after = _first(best.objective < stop_below, solved_after, done)
    return Outcome(best.variables, best.objective, done, redrawn, stuck, solved_after)


def step_decay(
    lr: float, milestones: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8), factor: float = 0.1
) -> Schedule:
    """Return a schedule that multiplies ``lr`` by ``factor`` at each milestone."""
    return lambda progress: lr * factor ** sum(progress >= milestone for milestone in milestones)


class _Best:
    def __init__(self, start: Variables):
        self.variables = start
        self.objective = _infinite(start)

    def offer(self, variables: Variables, objective: Tensor) -> None:
        better = objective.isfinite() & (objective < self.objective)
        self.objective = torch.where(better, objective, self.objective)
        self.variables = _choose(better, {k: v.detach() for k, v in variables.items()}, self.variables)


class _Fall:
    """Steps since the objective of each problem last fell, among the iterates since it was drawn."""

    def __init__(self, start: Variables, patience: int | None):
        self.patience = patience
        self.lowest = self.mark = _infinite(start)
        self.since = torch.zeros_like(self.mark, dtype=torch.long)

    def note(self, objective: Tensor) -> None:
        self.lowest = torch.fmin(self.lowest, objective)

    def has_ended(self) -> Tensor:
        """Count a step, and return the mask of problems out of patience."""
        fell = self.lowest < FALL * self.mark
        self.mark = torch.where(fell, self.lowest, self.mark)
        self.since = (self.since + 1).masked_fill(fell, 0)
        return self.since >= self.patience if self.patience is not None else torch.zeros_like(fell)

    def forget(self, which: Tensor) -> None:
        self.lowest, self.mark = (t.masked_fill(which, torch.inf) for t in (self.lowest, self.mark))
        self.since = self.since.masked_fill(which, 0)


def _infinite(start: Variables) -> Tensor:
    first = next(iter(start.values()))
    return torch.full(first.shape[:1], torch.inf, dtype=first.dtype, device=first.device)


def _first(solved: Tensor, solved_after: Tensor, done: int) -> Tensor:
    """Return the step at which each problem was first solved, updated for those now solved."""
    return torch.where(solved & (solved_after < 0), done, solved_after)


def _choose(which: Tensor, yes: Variables, no: Variables) -> Variables:
    """Return the problems in the boolean mask ``which`` from ``yes``, the others from ``no``."""
    return {
        name: torch.where(which.view(-1, *[1] * (value.ndim - 1)), yes[name], value)
        for name, value in no.items()
    }


def _without(
    solved: Tensor, variables: Variables, known: Tensor, narrow: Callable[[Tensor], Objective]
) -> tuple[Tensor, Variables]:
    """Return objectives and gradients: of solved problems those ``known`` before, and zero."""
    rows = (~solved).nonzero().flatten()
    values, gradients = _slopes(narrow(rows), {name: value[rows] for name, value in variables.items()})
    return known.index_copy(0, rows, values), {
        name: torch.zeros_like(variables[name]).index_copy(0, rows, gradient)
        for name, gradient in gradients.items()
    }


def _slopes(
    objective: Objective, variables: Variables, guide: Guide | None = None, progress: float = 0.0
) -> tuple[Tensor, Variables]:
    leaves = {name: value.detach().requires_grad_(True) for name, value in variables.items()}
    values = objective(leaves)
    total = values.sum() if guide is None else (values + guide(leaves, progress)).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()))
    return values.detach(), dict(zip(leaves, gradients, strict=True))


def _finite(tensors: Variables) -> Tensor:
    """Return, for each problem, whether all its numbers are finite."""
    rows = [tensor.isfinite().reshape(len(tensor), -1).all(dim=1) for tensor in tensors.values()]
    return torch.stack(rows).all(dim=0)


def _replace(variables: Variables, which: Tensor, redraw: Callable[[int], Variables]) -> Variables:
    replaced = {name: value.detach().clone() for name, value in variables.items()}
    for problem in which.nonzero().flatten().tolist():
        for name, value in redraw(problem).items():
            replaced[name][problem] = value
    return replaced
