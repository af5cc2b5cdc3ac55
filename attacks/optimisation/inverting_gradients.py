"""Inverting Gradients (Geiping et al. 2020): match the direction of the gradient, prefer smooth images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attacks.optimisation.image_attack import ImageAttack
from attacks.optimisation.image_space import draw_images, into_box, to_pixels
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import cosine_distance
from attacks.optimisation.optimisers import Adam, Variables
from attacks.optimisation.priors import colour_variation
from attacks.optimisation.problem import Problem

WHO = "inverting_gradients"
SPREAD = 0.1
"""Of the first guess: from near mid-grey the objective ends lower than from the paper's N(0, 1)."""


def inverting_gradients(
    steps: int = 1200,
    tv: float = 0.06,
    restarts: int = 1,
    adaptive: bool = False,
    lr: float = 0.1,
    labels: str = "auto",
    seed: int = 0,
    time_budget: float | None = None,
    fedavg: str = "single",
    trace: int = 0,
) -> InvertingGradients:
    """Recover a batch of images by ``1 - cosine`` over all layers plus ``tv`` times their variation.

    For a batch of B, ``tv`` counts sqrt(B) times: each image has a smaller part in the gradient.

    Signed Adam with a step size that falls from ``lr`` to zero in a straight line, projected
    onto valid pixels; of ``restarts`` the one with the lowest objective is kept. The paper
    divides the step size by ten after 3/8, 5/8 and 7/8 of the steps, and counts the variation
    of each channel by itself: on photographs kept for tuning, the two together recovered less.
    ``adaptive``: the attacker knows the defense (`attacks.optimisation.adaptation`).
    ``labels``: "granted" needs those of the observation, "infer" reads them off the output
    layer, "auto" infers them only if they are not granted. ``time_budget`` in seconds.
    ``fedavg``: an update of several local steps is matched as a "single" one (divided by
    their number and the learning rate) or "unrolled", which costs as many backward passes.
    ``trace``: how many snapshots of the search are kept, at most, beside the last one.
    """
    if not (math.isfinite(tv) and tv >= 0):
        raise ValueError(f"{WHO}: tv must be finite and not negative, got {tv}")
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"{WHO}: lr must be finite and positive, got {lr}")
    return InvertingGradients(
        who=WHO,
        steps=steps,
        restarts=restarts,
        adaptive=adaptive,
        labels=labels,
        seed=seed,
        time_budget=time_budget,
        fedavg=fedavg,
        trace=trace,
        tv=tv,
        lr=lr,
    )


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(ImageAttack):
    """The attack with its settings; `inverting_gradients` makes and checks it."""

    tv: float
    lr: float

    def recipe(self, problem: Problem) -> Recipe:
        """Return signed Adam on the cosine distance and the variation, inside the box."""

        def draw(generator: torch.Generator) -> Variables:
            return {"images": draw_images(problem, generator, SPREAD)}

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            return problem.to_inputs(to_pixels(variables["images"])), labels

        weight = self.tv * math.sqrt(problem.batch_size)
        return Recipe(
            draw=draw,
            decode=decode,
            matching=cosine_distance,
            priors=((weight, lambda variables: colour_variation(variables["images"])),),
            optimiser=partial(Adam, signed=True),
            schedule=lambda progress: self.lr * (1 - progress),
            steps=self.steps,
            project=into_box,
        )

    def read(self, problem: Problem, variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pixels, with the labels that the search started from."""
        return to_pixels(variables["images"]), labels
