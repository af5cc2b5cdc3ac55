"""Search for a stream of samples: first round by round, then all rounds together.

Every round's residual depends on the guesses for all rounds before it. A search that moves all of them at
once ends in a poor minimum, because wrong guesses for late rounds move the early ones. So in the first half
of the steps a round moves its own guess alone, with the residual that the others leave at present; the second
half starts from there and moves all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from attacks.base import StepListener
from attacks.optimisation.matching import Recipe, Solution, match_gradients
from attacks.optimisation.problem import Problem


def match_in_order(
    problems: Sequence[Problem],
    labels: Sequence[Tensor],
    recipe: Recipe,
    *,
    time_budget: float | None = None,
    on_step: StepListener | None = None,
    **more: Any,
) -> list[Solution]:
    """Solve problems of streams, with the arguments of `match_gradients`."""
    first = (recipe.steps + 1) // 2
    causal = [
        replace(problem, rounds=None if problem.rounds is None else replace(problem.rounds, causal=True))
        for problem in problems
    ]
    half = None if time_budget is None else time_budget / 2

    def listener(before: int) -> StepListener | None:
        if on_step is None:
            return None
        return lambda done, _, best: on_step(before + done, recipe.steps, best)

    begun = match_gradients(
        causal,
        labels,
        replace(recipe, steps=first),
        time_budget=half,
        on_step=listener(0),
        **(more | {"trail": 0}),
    )
    return match_gradients(
        problems,
        labels,
        replace(recipe, steps=max(1, recipe.steps - first)),
        time_budget=half,
        on_step=listener(first),
        starts=[solution.variables for solution in begun],
        **more,
    )
