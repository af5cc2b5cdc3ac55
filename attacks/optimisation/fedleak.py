"""FedLeak (Fan et al., USENIX Security 2025): match a part of the gradient, on a regularised slope."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from attacks.optimisation.inverting_gradients import InvertingGradients
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import Distance, Matching
from attacks.optimisation.problem import Problem
from attacks.optimisation.regularised import Regularised
from fl_app.types import Observation


@dataclass(frozen=True, kw_only=True)
class FedLeak(InvertingGradients):
    """Inverting Gradients on the ``matched`` share of each tensor's largest entries, with regularised slopes.

    Small entries of a gradient carry more of rounding, of other samples and of defenses than of the image.
    ``mixed`` is the share of the slope taken a step of ``reach`` uphill: each step costs two gradients.
    """

    matched: float = 0.7
    mixed: float = 0.3
    reach: float = 0.01

    who: ClassVar[str] = "fedleak"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.matched <= 1:
            raise ValueError(f"{self.who}: matched must be in (0, 1], got {self.matched}")
        if not 0 <= self.mixed <= 1:
            raise ValueError(f"{self.who}: mixed must be in [0, 1], got {self.mixed}")
        if not self.reach > 0:
            raise ValueError(f"{self.who}: reach must be positive, got {self.reach}")

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return the search of the parent on a part of the entries, by a mixed slope."""
        recipe = super().recipe(problem, observations)
        rounds = 1 if problem.rounds is None else len(problem.rounds.states)
        inner = recipe.optimiser
        return replace(
            recipe,
            matching=largest_alone(recipe.matching, problem.sizes * rounds, self.matched),
            optimiser=lambda: Regularised(inner(), share=self.mixed, reach=self.reach),
        )


fedleak = FedLeak


def largest_alone(base: Matching, sizes: Sequence[int], share: float) -> Matching:
    """Return the distance over the largest ``share`` of the observed entries of each tensor."""

    def matching(target: Tensor, mask: Tensor | None) -> Distance:
        chosen = []
        for part in target.split(list(sizes), dim=1):
            number = max(1, round(share * part.shape[1]))
            largest = part.abs().topk(number, dim=1).indices
            chosen.append(torch.zeros_like(part, dtype=torch.bool).scatter(1, largest, True))
        own = torch.cat(chosen, dim=1)
        return base(target, own if mask is None else own & mask.bool())

    return matching
