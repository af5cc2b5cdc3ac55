"""Surrogate model extension (Zhu, Yao and Blaschko, ICML 2023): many local steps as one of a model between.

The change of the weights by many local steps is the mean of the gradients along their way. The way is nearly
straight, so some model between its ends has a gradient over all samples in nearly that direction. The search
finds the place on the line together with the images. A step costs one gradient, however many local steps the
client took, where `fedavg="unrolled"` costs as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attacks.base import Reconstruction, StepListener
from attacks.optimisation.between import PLACE, RATE, Between
from attacks.optimisation.inverting_gradients import InvertingGradients
from attacks.optimisation.matching import Recipe
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from fl_app.types import Observation


@dataclass(frozen=True, kw_only=True)
class SurrogateModel(InvertingGradients):
    """Inverting Gradients at a model between those before and after local training."""

    who: ClassVar[str] = "sme"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fedavg != "single":
            raise ValueError(
                f"{self.who}: local steps are matched at a model between; fedavg must be 'single'"
            )

    def problem(self, obs: Observation) -> Problem:
        """Return the matching problem of a weight difference."""
        if obs.local_steps is None:
            raise ValueError(f"{self.who}: expected an update of local steps, got a gradient; use ig")
        problem = super().problem(obs)
        delta = {name: obs.update[name].detach().to(problem.target) for name in problem.names}
        note = f"{obs.local_steps} local steps matched at a model between the first and the last"
        notes = tuple(one for one in problem.notes if "matched as one" not in one)
        return replace(problem, between=Between(delta), notes=(*notes, note))

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return the search for images and the place."""
        recipe = super().recipe(problem, observations)
        draw, project = recipe.draw, recipe.project

        def with_place(generator: torch.Generator) -> Variables:
            return {**draw(generator), PLACE: torch.full((1,), 0.5 / RATE, dtype=problem.target.dtype)}

        def on_the_line(variables: Variables) -> Variables:
            return {**project(variables), PLACE: variables[PLACE].clamp(0, 1 / RATE)}

        return replace(recipe, draw=with_place, project=on_the_line, draws=(*recipe.draws, PLACE))

    def search(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates one by one, because each has a line of its own."""
        return [
            one for obs in observations for one in super(SurrogateModel, self).search([obs], on_step=on_step)
        ]


sme = SurrogateModel
