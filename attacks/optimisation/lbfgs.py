"""L-BFGS with a strong-Wolfe line search, for a stack of independent problems.

Each problem has its own history, step length and number of trials. Its search is a
generator that asks for one point and is handed the objective and gradient there, so the
algorithm reads as for a single problem while the questions of all are answered in one graph.
"""

from __future__ import annotations

import math
from collections.abc import Generator
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
"""Asks for points (n,), returns the one where it ends."""


class LBFGS:
    """Up to ``iterations`` quasi-Newton steps a call, out of the last ``history`` ones.

    A call evaluates at most 5/4 times as often, as torch's does. The learning rate is the
    first length that a line search tries, along the gradient while there is no history.
    """

    def __init__(self, *, history: int = 100, iterations: int = 20):
        self.history = history
        self.iterations = iterations
        self.memories: list[_Memory] = []

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables after one call; a problem without a finite start stays where it is."""
        ends = _pack(variables)
        if not self.memories:
            self.memories = [_Memory(self.history) for _ in ends]
        searches: dict[int, Search] = {}
        for p, (memory, answer) in enumerate(zip(self.memories, _answers(evaluate, variables), strict=True)):
            if math.isfinite(answer.value):
                searches[p] = _descend(ends[p].clone(), answer, memory, lr, self.iterations)
        asked = ends.clone()
        advance = {p: next for p in searches}  # a generator is started by next, then answered by send
        answers: list[Answer] = []
        while searches:
            for p, search in list(searches.items()):
                try:
                    asked[p] = advance[p](search) if p in advance else search.send(answers[p])
                except StopIteration as end:
                    asked[p] = ends[p] = end.value
                    del searches[p]
            advance = {}
            if searches:
                answers = _answers(evaluate, _unpack(asked, variables))
        return _unpack(ends, variables)

    def reset(self, which: Tensor) -> None:
        """Forget the history of some problems."""
        for memory, forget in zip(self.memories, which.tolist(), strict=False):
            if forget:
                memory.clear()


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


def _descend(point: Tensor, here: Answer, memory: _Memory, lr: float, iterations: int) -> Search:
    evaluations = iterations * 5 // 4 - 1
    for _ in range(iterations):
        length = lr if memory.added else lr * min(1.0, 1.0 / max(float(here.gradient.abs().sum()), 1e-30))
        direction = memory.direction(here.gradient)
        slope = _dot(here.gradient, direction)
        if not slope < 0:
            memory.clear()  # flat ground, or rounding has spoilt the history
            break
        trial, used = yield from _line_search(point, direction, here.value, slope, length, evaluations)
        evaluations -= used
        if trial is None:
            memory.clear()  # the next call tries the gradient itself
            break
        step = trial.length * direction
        memory.add(step, trial.gradient - here.gradient)
        point, here = point + step, Answer(trial.value, trial.gradient)
        if evaluations <= 0:
            break
    return point


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
        """Take in one pair, unless it shows no curvature: the next direction could then point uphill."""
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
    """A point on the line of a search: how far along, how high, how steep."""

    length: float
    value: float
    slope: float
    gradient: Tensor


def _line_search(
    point: Tensor, direction: Tensor, value: float, slope: float, length: float, evaluations: int
) -> Generator[Tensor, Answer, tuple[_Trial | None, int]]:
    """Return a trial that meets the strong Wolfe conditions, or the lowest found, and the evaluations used.

    Brackets a length, then narrows the bracket (Nocedal and Wright 2006, Algorithms 3.5
    and 3.6, by cubic interpolation). None if no trial was lower than the start.
    """
    start = _Trial(0.0, value, slope, direction)
    used = 0

    def sufficient(trial: _Trial) -> bool:
        return trial.value <= value + SUFFICIENT * trial.length * slope

    def flat(trial: _Trial) -> bool:
        return abs(trial.slope) <= -CURVATURE * slope

    before, trial = start, (yield from _try(point, direction, length))
    used += 1
    while True:
        if not sufficient(trial) or (used > 2 and trial.value >= before.value):
            low, high = (before, trial) if before.value <= trial.value else (trial, before)
            break
        if flat(trial) or used >= evaluations:
            return trial, used
        if trial.slope >= 0:
            low, high = (before, trial) if before.value <= trial.value else (trial, before)
            break
        shortest = trial.length + 0.01 * (trial.length - before.length)
        length = _interpolate(before, trial, shortest, 10 * trial.length)
        before, trial = trial, (yield from _try(point, direction, length))
        used += 1

    cramped = False
    while used < evaluations and abs(high.length - low.length) > torch.finfo(point.dtype).eps * high.length:
        shortest, longest = sorted((low.length, high.length))
        length = _interpolate(*sorted((low, high), key=lambda t: t.length), shortest, longest)
        margin = 0.1 * (longest - shortest)
        near = min(longest - length, length - shortest) < margin
        # the second trial in a row beside an end of the bracket is moved inwards, lest it hardly narrows
        if near and (cramped or length >= longest or length <= shortest):
            length = longest - margin if longest - length < length - shortest else shortest + margin
            cramped = False
        else:
            cramped = near
        trial = yield from _try(point, direction, length)
        used += 1
        if not sufficient(trial) or trial.value >= low.value:
            high = trial
            continue
        if flat(trial):
            return trial, used
        if trial.slope * (high.length - low.length) >= 0:
            high = low
        low = trial
    return (low if low.value < value else None), used


def _try(point: Tensor, direction: Tensor, length: float) -> Generator[Tensor, Answer, _Trial]:
    answer = yield point + length * direction
    return _Trial(length, answer.value, _dot(answer.gradient, direction), answer.gradient)


def _interpolate(left: _Trial, right: _Trial, shortest: float, longest: float) -> float:
    """Return where the cubic through two trials has its minimum, within limits; their middle if it has none."""
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
