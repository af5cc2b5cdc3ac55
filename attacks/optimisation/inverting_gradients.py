"""Inverting Gradients (Geiping et al. 2020): match the direction of the gradient, prefer smooth images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attacks.base import Reconstruction, StepListener
from attacks.optimisation.image_space import draw_images, into_box, to_pixels
from attacks.optimisation.known_labels import SOURCES, known_labels
from attacks.optimisation.loop import step_decay
from attacks.optimisation.matching import Recipe, Solution, match_gradients
from attacks.optimisation.objectives import cosine_distance
from attacks.optimisation.optimisers import Adam, Variables
from attacks.optimisation.priors import total_variation
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Observation

WHO = "inverting_gradients"
SPREAD = 0.1
"""Of the first guess: from near mid-grey the objective ends lower than from the paper's N(0, 1)."""


def inverting_gradients(
    steps: int = 1200,
    tv: float = 0.05,
    restarts: int = 1,
    adaptive: bool = False,
    lr: float = 0.1,
    labels: str = "auto",
    seed: int = 0,
    time_budget: float | None = None,
) -> InvertingGradients:
    """Recover a batch of images by ``1 - cosine`` over all layers plus ``tv`` times total variation.

    Signed Adam with step size ``lr``, a tenth of it after 3/8, 5/8 and 7/8 of the steps,
    projected onto valid pixels; of ``restarts`` the one with the lowest objective is kept.
    ``adaptive``: the attacker knows of pruning and matches only where something was sent.
    ``labels``: "granted" needs those of the observation, "infer" reads them off the output
    layer, "auto" infers them only if they are not granted. ``time_budget`` in seconds.
    """
    for name, number in (("steps", steps), ("restarts", restarts)):
        if number < 1:
            raise ValueError(f"{WHO}: {name} must be at least 1, got {number}")
    if not (math.isfinite(tv) and tv >= 0):
        raise ValueError(f"{WHO}: tv must be finite and not negative, got {tv}")
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"{WHO}: lr must be finite and positive, got {lr}")
    if labels not in SOURCES:
        raise ValueError(f"{WHO}: labels must be one of {SOURCES}, got {labels!r}")
    if time_budget is not None and not time_budget > 0:
        raise ValueError(f"{WHO}: time_budget must be positive seconds or None, got {time_budget}")
    return InvertingGradients(steps, tv, restarts, adaptive, lr, labels, seed, time_budget)


@dataclass(frozen=True)
class InvertingGradients:
    """The attack with its settings; `inverting_gradients` makes and checks it."""

    steps: int
    tv: float
    restarts: int
    adaptive: bool
    lr: float
    labels: str
    seed: int
    time_budget: float | None

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        return self.many([obs], on_step=on_step)[0]

    def many(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates to one model in one graph, which is several times faster."""
        if not observations:
            return []
        problems = [as_problem(obs, who=WHO) for obs in observations]
        known = [
            known_labels(obs, p, self.labels, who=WHO) for obs, p in zip(observations, problems, strict=True)
        ]
        solutions = match_gradients(
            problems,
            [labels for labels, _ in known],
            self._recipe(problems[0]),
            restarts=self.restarts,
            seed=self.seed,
            time_budget=self.time_budget,
            on_step=on_step,
        )
        results = []
        for obs, problem, (labels, notes), solution in zip(
            observations, problems, known, solutions, strict=True
        ):
            notes = [*problem.notes, *notes, *self._knowledge(obs, problem), *solution.notes]
            results.append(_reconstruction(solution, labels, notes))
        return results

    def _recipe(self, problem: Problem) -> Recipe:
        def draw(generator: torch.Generator) -> Variables:
            return {"images": draw_images(problem, generator, SPREAD)}

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            return problem.to_inputs(to_pixels(variables["images"])), labels

        return Recipe(
            draw=draw,
            decode=decode,
            matching=cosine_distance,
            priors=((self.tv, lambda variables: total_variation(variables["images"])),),
            optimiser=partial(Adam, signed=True),
            schedule=step_decay(self.lr),
            steps=self.steps,
            project=into_box,
            masked=self.adaptive,
        )

    def _knowledge(self, obs: Observation, problem: Problem) -> list[str]:
        if not self.adaptive:
            return []
        sent = f"{int(problem.sent.sum())} of {problem.sent.numel()} entries"
        which = "that were sent" if obs.sent is not None else "that are not zero, taken for all that was sent"
        return [f"adaptive: matched only the {sent} {which}"]


def _reconstruction(solution: Solution, labels: Tensor, notes: list[str]) -> Reconstruction:
    objective = float(solution.objective[solution.best])
    if not math.isfinite(objective):
        notes.append("no guess had a finite objective: the images are noise")
    return Reconstruction(
        images=to_pixels(solution.variables["images"][solution.best]).clamp(0, 1),
        labels=labels,
        objective=objective if math.isfinite(objective) else None,
        notes=tuple(notes),
    )
