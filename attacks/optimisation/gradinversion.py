"""GradInversion (Yin et al. 2021): match the gradient, the BatchNorm statistics, and the other restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor

from attacks.optimisation.group_consistency import GroupConsistency
from attacks.optimisation.image_attack import ImageAttack, check_step_size, check_weight
from attacks.optimisation.image_space import draw_images, into_box, to_pixels
from attacks.optimisation.loop import Schedule
from attacks.optimisation.matching import Owners, Prior, Recipe
from attacks.optimisation.objectives import relative_distance
from attacks.optimisation.optimisers import Adam, Variables
from attacks.optimisation.priors import squared_length, total_variation
from attacks.optimisation.problem import Problem
from attacks.optimisation.statistics_prior import known_statistics, statistics_prior
from fl_app.types import Observation

SPREAD = 0.1
"""Deviation of the first guess: pixels that neither gradient nor prior settles stay mid-grey, not noise."""


@dataclass(frozen=True, kw_only=True)
class GradInversion(ImageAttack):
    """Recover a batch of images by the squared distance of gradients and four priors, with their weights.

    ``tv``: total variation; ``l2``: mean square around mid-grey; ``statistics``: BatchNorm statistics, of
    the client's own batch if it sent its buffers, else the model's; ``group``: the distance of a
    restart to the registered mean of all ``restarts``, which steers them but does not decide
    which is best. The distance is relative to the observed gradient's square, so that weights
    mean the same for all models. Adam on signs with step size ``lr``, falling to zero along a
    half cosine, projected onto valid pixels.

    Signs, the half cosine and ``tv`` are not the paper's (plain Adam, steps, 1e-4): on a trained
    ConvNet16 in train mode, a batch of four CIFAR-10 test pictures, 100 steps, those and a ``statistics``
    of 1 ended at a relative distance of 0.27 and further from the truth than grey is; these at 0.05 and
    nearer.
    """

    steps: int = 2000
    restarts: int = 4
    tv: float = 0.2
    l2: float = 1e-6
    statistics: float = 3.0
    group: float = 0.01
    lr: float = 0.1

    who: ClassVar[str] = "gradinversion"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tv", "l2", "statistics", "group"):
            check_weight(self.who, name, getattr(self, name))
        check_step_size(self.who, self.lr)

    def options(self) -> list[Self]:
        """Return several weights of the total variation, and each without statistics that may mislead."""
        rows = [replace(self, tv=factor * self.tv) for factor in (0.1, 0.3, 1.0, 3.0)]
        return rows + ([replace(row, statistics=0.0) for row in rows] if self.statistics > 0 else [])

    def refinements(self) -> list[Self]:
        """Return other step sizes."""
        return [replace(self, lr=0.3 * self.lr), replace(self, lr=3 * self.lr)]

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return signed Adam on the relative distance and all priors, inside the box."""
        statistics = [known_statistics(obs)[0] for obs in observations]

        def draw(generator: torch.Generator) -> Variables:
            return {"images": draw_images(problem, generator, SPREAD)}

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            return _inputs(problem, variables), labels

        def own_priors(owners: Owners) -> list[tuple[float, Prior]]:
            targets = [statistics[owner] for owner in owners]
            if self.statistics == 0 or not any(targets):
                return []
            example = problem.target.new_zeros(len(owners), problem.batch_size, *problem.input_shape)
            penalty = statistics_prior(problem.model, targets, example)
            return [(self.statistics, lambda variables: penalty(_inputs(problem, variables)))]

        grouped = self.group > 0 and self.restarts > 1
        return Recipe(
            draw=draw,
            decode=decode,
            matching=relative_distance,
            priors=(
                (self.tv, lambda variables: total_variation(variables["images"])),
                (self.l2, lambda variables: squared_length(variables["images"])),
            ),
            own_priors=own_priors,
            guide=partial(GroupConsistency, self.group) if grouped else None,
            optimiser=partial(Adam, signed=True),
            schedule=_cosine_decay(self.lr),
            steps=self.steps,
            project=into_box,
        )

    def remarks(self, obs: Observation) -> list[str]:
        """Return a note on the source of the statistics."""
        return [known_statistics(obs)[1] if self.statistics > 0 else "statistics prior off: its weight is 0"]

    def read(
        self, obs: Observation, problem: Problem, variables: Variables, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the pixels, with the labels that the search started from."""
        return to_pixels(variables["images"]), labels


gradinversion = GradInversion


def _cosine_decay(lr: float) -> Schedule:
    return lambda progress: lr * (1 + math.cos(math.pi * progress)) / 2


def _inputs(problem: Problem, variables: Variables) -> Tensor:
    return problem.to_inputs(to_pixels(variables["images"]))
