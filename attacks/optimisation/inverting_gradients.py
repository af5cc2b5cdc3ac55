"""Inverting Gradients (Geiping et al. 2020): match the direction of the gradient, prefer smooth images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from attacks.base import Reconstruction, StepListener
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
from attacks.optimisation.rehearsal import ROUNDS, Attack, best_candidate, set_apart
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
    rehearsals: int = 4
    """Updates of the attacker's own images on which it chooses its prior if that is "auto"; 0: none."""

    who: ClassVar[str] = "inverting_gradients"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior not in PRIORS:
            raise ValueError(f"{self.who}: prior must be one of {PRIORS}, got {self.prior!r}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"{self.who}: objective must be one of {OBJECTIVES}, got {self.objective!r}")
        check_weight(self.who, "tv", self.tv)
        check_weight(self.who, "weight", self.weight)
        if self.rehearsals < 0:
            raise ValueError(f"{self.who}: rehearsals must be 0 or more, got {self.rehearsals}")
        check_step_size(self.who, self.lr)

    def space(self, obs: Observation) -> PixelSpace | CodeSpace:
        """Return the space that is searched."""
        if self.prior == "variation" or (self.prior == "auto" and obs.known is None):
            return PixelSpace(self.tv, SPREAD)
        if obs.known is None:
            raise ValueError(f"{self.who}: prior=photographs needs images of the attacker's own, got none")
        learnt_from, _ = set_apart(obs.known, self.rehearsals * (obs.batch_size or 1))
        return CodeSpace(law_of(learnt_from.images), self.weight, SPREAD)

    def many(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates to one model, with the prior that did best in rehearsal."""
        first = observations[0] if observations else None
        if first is None or first.known is None or self.prior != "auto" or self.rehearsals == 0:
            return super().many(observations, on_step=on_step)
        options = self._options()

        def attack_of(number: int, steps: int) -> Attack:
            return replace(options[number], steps=steps, restarts=1, trace=0, time_budget=None).many

        choice = best_candidate(
            first, attack_of, len(options), steps=self.steps, updates=self.rehearsals, who=self.who
        )
        chosen = options[choice.number]
        told = f"tv={chosen.tv:g}" if chosen.prior == "variation" else f"weight={chosen.weight:g}"
        note = (
            f"rehearsed on {self.rehearsals} updates of the attacker's own images: prior={chosen.prior} "
            f"{told} (SSIM {choice.score:.2f} there)"
        )
        return [
            replace(result, notes=(*result.notes, note))
            for result in super(InvertingGradients, chosen).many(observations, on_step=on_step)
        ]

    def rehearsal_cost(self) -> float:
        """Return the steps of the rehearsals, in steps of the attack."""
        left, cost = len(self._options()), 0.0
        for share, remain in ROUNDS:
            cost += left * share * self.rehearsals
            left = remain
        return cost if self.rehearsals else 0.0

    def _options(self) -> list[InvertingGradients]:
        """Return the settings that are rehearsed."""
        return [replace(self, prior="variation", tv=factor * self.tv) for factor in (0.25, 1.0, 4.0)] + [
            replace(self, prior="photographs", weight=factor * self.weight) for factor in FACTORS
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
