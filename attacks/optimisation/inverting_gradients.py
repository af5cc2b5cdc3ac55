"""Inverting Gradients (Geiping et al. 2020): match the direction of the gradient, prefer smooth images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from torch import Tensor

from attacks.optimisation.image_attack import ImageAttack, check_step_size, check_weight
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import (
    Matching,
    cosine_distance,
    relative_distance,
    round_by_round,
    tensor_by_tensor,
)
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from attacks.optimisation.rehearsal import set_apart
from attacks.optimisation.spaces import CodeSpace, PixelSpace
from attacks.priors import law_of
from fl_app.types import Observation

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Multiples of the weight of the law of photographs that are rehearsed."""
OBJECTIVES = ("whole", "tensors")
PRIORS = ("auto", "variation", "photographs")
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
    objective: str = "whole"
    """Cosine distance of the "whole" gradient, or the mean over its "tensors", however large each is."""
    prior: str = "auto"
    """Prior on images: "variation", "photographs" (a law of the attacker's own images), or "auto":
    that law if the attacker has images."""
    weight: float = 0.01
    """Weight of the law of photographs."""

    who: ClassVar[str] = "inverting_gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior not in PRIORS:
            raise ValueError(f"{self.who}: prior must be one of {PRIORS}, got {self.prior!r}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"{self.who}: objective must be one of {OBJECTIVES}, got {self.objective!r}")
        check_weight(self.who, "tv", self.tv)
        check_weight(self.who, "weight", self.weight)
        check_step_size(self.who, self.lr)

    def space(self, obs: Observation) -> PixelSpace | CodeSpace:
        """Return the space that is searched."""
        if self.prior == "variation" or (self.prior == "auto" and obs.known is None):
            return PixelSpace(self.tv, SPREAD)
        if obs.known is None:
            raise ValueError(f"{self.who}: prior=photographs needs images of the attacker's own, got none")
        learnt_from, _ = set_apart(obs.known, self.rehearsals * (obs.batch_size or 1))
        return CodeSpace(law_of(learnt_from.images), self.weight, SPREAD)

    def options(self) -> list[Self]:
        """Return both priors with several weights, if the prior is left open."""
        if self.prior != "auto":
            return []
        return [replace(self, prior="variation", tv=factor * self.tv) for factor in (0.25, 1.0, 4.0)] + [
            replace(self, prior="photographs", weight=factor * self.weight) for factor in FACTORS
        ]

    def refinements(self) -> list[Self]:
        """Return other step sizes, and the other objective."""
        other = next(name for name in OBJECTIVES if name != self.objective)
        return [
            replace(self, lr=0.3 * self.lr),
            replace(self, lr=3 * self.lr),
            replace(self, objective=other),
        ]

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return Adam on the cosine distance and the prior."""
        space: PixelSpace | CodeSpace = self.space(observations[0])
        matching: Matching = cosine_distance
        if self.objective == "tensors":
            rounds = 1 if problem.rounds is None else len(problem.rounds.states)
            matching = tensor_by_tensor(matching, problem.sizes * rounds)
        if problem.rounds is not None and problem.rounds.stream:
            space = replace(space, rounds=len(problem.rounds.states))
            # a direction alone would leave the size of the residual open
            matching = round_by_round(relative_distance, space.rounds)

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            return problem.to_inputs(space.pixels(variables)), labels

        return Recipe(
            draw=partial(space.draw, problem),
            decode=decode,
            matching=matching,
            priors=((1.0, space.penalty),),
            optimiser=space.optimiser(),
            schedule=lambda progress: self.lr * (1 - progress),
            steps=self.steps,
            project=space.project,
        )

    def read(
        self, obs: Observation, problem: Problem, variables: Variables, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the pixels, with the labels that the search started from."""
        return self.space(obs).pixels(variables), labels


inverting_gradients = InvertingGradients
