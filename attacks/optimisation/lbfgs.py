"""L-BFGS with a strong-Wolfe line search, for a stack of independent problems.

Each problem has its own history, step length and number of trials. Its search is a
generator that asks for one point and is handed the objective and gradient there, so the
algorithm reads as for a single problem while the questions of all are answered in one graph.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.optimisation.optimisers import Evaluate, Variables

SUFFICIENT, CURVATURE = 1e-4, 0.9
"""The constants of the Wolfe conditions (Nocedal and Wright 2006, section 3.1)."""


class Answer(NamedTuple):
    """The objective at a point, infinite where it or its gradient is not finite."""

    value: float
    gradient: Tensor


Search = Generator[Tensor, Answer, Tensor]
"""Yields points (n,) to evaluate and returns the final one."""


class LBFGS:
    """Up to ``iterations`` quasi-Newton steps and ``evaluations`` a call, out of the last ``history`` steps.

    The learning rate is the first length that a line search tries, along the gradient
    while there is no history.
    """

    def __init__(self, *, history: int = 100, iterations: int = 20, evaluations: int = 25):
        self.history = history
        self.iterations = iterations
        self.evaluations = evaluations
        self.memories: list[_Memory] = []

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables after one call; a problem without a finite start stays where it is."""
        ends = _pack(variables)
        if not self.memories:
            self.memories = [_Memory(self.history) for _ in ends]
        searches: dict[int, Search] = {}
        for p, (memory, answer) in enumerate(zip(self.memories, _answers(evaluate, variables), strict=True)):
            if math.isfinite(answer.value):
                searches[p] = self._descend(ends[p].clone(), answer, memory, lr)
        asked = ends.clone()
        answers: Sequence[Answer | None] = [None] * len(ends)
        while searches:
            for p, search in list(searches.items()):
                try:
                    asked[p] = _ask(search, answers[p])
                except StopIteration as end:
                    asked[p] = ends[p] = end.value
                    del searches[p]
            if searches:
                answers = _answers(evaluate, _unpack(asked, variables))
        return _unpack(ends, variables)

    def reset(self, which: Tensor) -> None:
        """Forget the history of some problems."""
        for memory, forget in zip(self.memories, which.tolist(), strict=False):
            if forget:
                memory.clear()

    def _descend(self, point: Tensor, here: Answer, memory: _Memory, lr: float) -> Search:
        evaluations = self.evaluations - 1  # one was spent on the start
        for _ in range(self.iterations):
            direction = memory.direction(here.gradient)
            line = _Line(point, direction, here, evaluations)
            # not below zero: the objective is flat, or rounding has corrupted the history
            found = (
                (yield from _line_search(line, lr * memory.reach(here.gradient))) if line.slope < 0 else None
            )
            if found is None:
                memory.clear()  # so that the next call tries the gradient itself
                break
            step = found.length * direction
            memory.add(step, found.gradient - here.gradient)
            point, here, evaluations = point + step, Answer(found.value, found.gradient), line.evaluations
            if evaluations <= 0:
                break
        return point


def _pack(variables: Variables) -> Tensor:
    return torch.cat([value.detach().flatten(1) for value in variables.values()], dim=1)


def _unpack(flat: Tensor, like: Variables) -> Variables:
    parts = flat.split([value[0].numel() for value in like.values()], dim=1)
    return {name: part.view_as(like[name]) for name, part in zip(like, parts, strict=True)}


def _answers(evaluate: Evaluate, variables: Variables) -> list[Answer]:
    values, gradients = evaluate(variables)
    flat = _pack(gradients)
    values = torch.where(flat.isfinite().all(dim=1) & values.isfinite(), values, torch.inf)
    return [Answer(value, gradient) for value, gradient in zip(values.tolist(), flat, strict=True)]


def _ask(search: Search, answer: Answer | None) -> Tensor:
    return next(search) if answer is None else search.send(answer)


class _Memory:
    """The last steps ``s`` and changes of the gradient ``y``, oldest to newest, in a ring."""

    def __init__(self, size: int):
        self.size = size
        self.clear()

    def clear(self) -> None:
        self.added = 0
        self.scale = 1.0
        self.rings: tuple[Tensor, Tensor] | None = None

    def add(self, step: Tensor, change: Tensor) -> None:
        """Add one pair, unless it has no curvature: the next direction could then point uphill."""
        curvature = _dot(step, change)
        if not curvature > torch.finfo(step.dtype).eps * float(step.norm() * change.norm()):
            return
        if self.rings is None:
            self.rings = (step.new_empty(self.size, len(step)), step.new_empty(self.size, len(step)))
            # double: of the products' triangle, inverted, small errors grow
            self.products = step.new_zeros(self.size, self.size, dtype=torch.float64)
        s, y = self.rings
        slot = self.added % self.size
        s[slot], y[slot] = step, change
        self.added += 1
        used = min(self.added, self.size)
        self.products[:used, slot] = (s[:used] @ change).double()
        self.scale = curvature / _dot(change, change)

    def reach(self, gradient: Tensor) -> float:
        """Return the length to try first: the directions have a scale of their own once there is history."""
        return 1.0 if self.added else 1.0 / max(1.0, float(gradient.abs().sum()))

    def direction(self, gradient: Tensor) -> Tensor:
        """Return ``-H g`` with the inverse Hessian ``H`` that the pairs imply.

        The two loops of Nocedal and Wright 2006, Algorithm 7.4, each written as what it
        solves: with ``R`` the upper triangle of ``s_i . y_j`` and ``D`` its diagonal, the
        first is ``R a = S g``, and the second ``R' c = D a - scale * Y q``.
        """
        if self.rings is None:
            return -gradient
        used = min(self.added, self.size)
        oldest = self.added % self.size if self.added > self.size else 0
        s, y = (ring[:used] for ring in self.rings)
        r = self.products[:used, :used].roll((-oldest, -oldest), (0, 1)).triu()

        def in_order(products: Tensor) -> Tensor:
            return products.double().roll(-oldest)[:, None]

        def in_slots(weights: Tensor) -> Tensor:
            return weights[:, 0].roll(oldest).to(gradient.dtype)

        a = torch.linalg.solve_triangular(r, in_order(s @ gradient), upper=True)
        q = gradient - in_slots(a) @ y
        right = r.diagonal()[:, None] * a - self.scale * in_order(y @ q)
        c = torch.linalg.solve_triangular(r.T, right, upper=False)
        return -(self.scale * q + in_slots(c) @ s)


class _Trial(NamedTuple):
    """A trial on the line of a search: step length, objective, slope."""

    length: float
    value: float
    slope: float
    gradient: Tensor


class _Line:
    """Line from a point along a direction, and the remaining number of evaluations."""

    def __init__(self, point: Tensor, direction: Tensor, here: Answer, evaluations: int):
        self.point = point
        self.direction = direction
        self.evaluations = evaluations
        self.slope = _dot(here.gradient, direction)
        self.start = _Trial(0.0, here.value, self.slope, here.gradient)

    def at(self, length: float) -> Generator[Tensor, Answer, _Trial]:
        self.evaluations -= 1
        answer = yield self.point + length * self.direction
        return _Trial(length, answer.value, _dot(answer.gradient, self.direction), answer.gradient)

    def is_lower(self, trial: _Trial) -> bool:
        return trial.value <= self.start.value + SUFFICIENT * trial.length * self.slope

    def is_flatter(self, trial: _Trial) -> bool:
        return abs(trial.slope) <= -CURVATURE * self.slope


def _line_search(line: _Line, length: float) -> Generator[Tensor, Answer, _Trial | None]:
    """Return a trial that meets the strong Wolfe conditions, or else the lowest found.

    None if no trial was lower than the start. After Nocedal and Wright 2006, Algorithms
    3.5 and 3.6, by cubic interpolation.
    """
    low, high = yield from _bracket(line, length)
    if high is not None:
        low = yield from _narrow(line, low, high)
    return low if low.value < line.start.value else None


def _bracket(line: _Line, length: float) -> Generator[Tensor, Answer, tuple[_Trial, _Trial | None]]:
    """Lengthen the step until it brackets a minimum; a trial returned alone is already good enough."""
    before, trial = line.start, (yield from line.at(length))
    while line.is_lower(trial) and trial.value < before.value:
        if line.is_flatter(trial) or line.evaluations <= 0:
            return trial, None
        if trial.slope >= 0:
            break
        shortest = trial.length + 0.01 * (trial.length - before.length)
        length = _interpolate(before, trial, shortest, 10 * trial.length)
        before, trial = trial, (yield from line.at(length))
    return _lower_first(before, trial)


def _narrow(line: _Line, low: _Trial, high: _Trial) -> Generator[Tensor, Answer, _Trial]:
    """Shrink a bracket around its lower end until that meets both conditions."""
    cramped = False
    precision = torch.finfo(line.point.dtype).eps
    while line.evaluations > 0 and abs(high.length - low.length) > precision * high.length:
        length, cramped = _inside(low, high, cramped)
        trial = yield from line.at(length)
        if not line.is_lower(trial) or trial.value >= low.value:
            low, high = _lower_first(low, trial)
            continue
        if line.is_flatter(trial):
            return trial
        if trial.slope * (high.length - low.length) >= 0:
            high = low
        low = trial
    return low


def _inside(low: _Trial, high: _Trial, cramped: bool) -> tuple[float, bool]:
    """Return a length within the bracket, and whether it lies so near an end that it may hardly narrow it.

    The second such length in a row, or one on the very end, is moved inwards.
    """
    left, right = (low, high) if low.length < high.length else (high, low)
    length = _interpolate(left, right, left.length, right.length)
    margin = 0.1 * (right.length - left.length)
    below, above = length - left.length, right.length - length
    near = min(below, above) < margin
    if near and (cramped or min(below, above) <= 0):
        return (right.length - margin if above < below else left.length + margin), False
    return length, near


def _lower_first(a: _Trial, b: _Trial) -> tuple[_Trial, _Trial]:
    return (a, b) if a.value <= b.value else (b, a)


def _interpolate(left: _Trial, right: _Trial, shortest: float, longest: float) -> float:
    """Return where the cubic through two trials is lowest, within limits; the middle if it has no minimum."""
    middle = (shortest + longest) / 2
    d1 = left.slope + right.slope - 3 * (left.value - right.value) / (left.length - right.length)
    square = d1 * d1 - left.slope * right.slope
    if not (math.isfinite(square) and square >= 0):
        return middle
    d2 = math.sqrt(square)
    steepness = right.slope - left.slope + 2 * d2
    if steepness == 0:
        return middle
    length = right.length - (right.length - left.length) * (right.slope + d2 - d1) / steepness
    return min(max(length, shortest), longest)


def _dot(a: Tensor, b: Tensor) -> float:
    return float(a @ b)
