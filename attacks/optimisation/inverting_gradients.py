"""Inverting Gradients (Geiping et al. 2020): match the direction of the gradient, prefer smooth images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from attacks.optimisation.image_attack import ImageAttack, check_step_size, check_weight
from attacks.optimisation.image_space import draw_images, into_box, to_pixels
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import cosine_distance
from attacks.optimisation.optimisers import Adam, Variables
from attacks.optimisation.priors import colour_variation
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

SPREAD = 0.1
"""Deviation of the first guess: near mid-grey the objective ends lower than from the paper's N(0, 1)."""


@dataclass(frozen=True, kw_only=True)
class InvertingGradients(ImageAttack):
    """Recover a batch of images by ``1 - cosine`` over all layers plus ``tv`` times their variation.

    For a batch of B, ``tv`` counts sqrt(B) times: each image has a smaller part in the gradient.

    Signed Adam with a step size that falls linearly from ``lr`` to zero, projected onto valid
    pixels. The paper divides the step size by ten after 3/8, 5/8 and 7/8 of the steps, and counts
    the variation of each channel by itself: on photographs kept for tuning, the two together
    recovered less.
    """

    steps: int = 1200
    tv: float = 0.06
    lr: float = 0.1

    who: ClassVar[str] = "inverting_gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weight(self.who, "tv", self.tv)
        check_step_size(self.who, self.lr)

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
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


inverting_gradients = InvertingGradients
