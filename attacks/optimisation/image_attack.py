"""What the attacks on images share: from observations to problems, a recipe, and results with notes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from attacks.base import Reconstruction, StepListener
from attacks.optimisation.known_labels import SOURCES, known_labels
from attacks.optimisation.matching import Recipe, Solution, match_gradients
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Observation

FEDAVG = ("single", "unrolled")


@dataclass(frozen=True, kw_only=True)
class ImageAttack(ABC):
    """An attack with its settings; subclasses say what is searched for and how."""

    who: str
    """The name of the attack in errors."""
    steps: int
    restarts: int
    adaptive: bool
    """The attacker knows of pruning and matches only where something was sent."""
    labels: str
    """Where the labels come from."""
    seed: int
    time_budget: float | None
    fedavg: str = "single"
    """How an update of several local steps is matched: as a single one, or unrolled."""

    sources: ClassVar[tuple[str, ...]] = SOURCES
    """What ``labels`` may be."""

    def __post_init__(self) -> None:
        for name, number in (("steps", self.steps), ("restarts", self.restarts)):
            if number < 1:
                raise ValueError(f"{self.who}: {name} must be at least 1, got {number}")
        if self.labels not in self.sources:
            raise ValueError(f"{self.who}: labels must be one of {self.sources}, got {self.labels!r}")
        if self.fedavg not in FEDAVG:
            raise ValueError(f"{self.who}: fedavg must be one of {FEDAVG}, got {self.fedavg!r}")
        if self.time_budget is not None and not self.time_budget > 0:
            raise ValueError(
                f"{self.who}: time_budget must be positive seconds or None, got {self.time_budget}"
            )

    @abstractmethod
    def recipe(self, problem: Problem) -> Recipe:
        """Return the search, for this problem and those like it."""

    @abstractmethod
    def read(self, problem: Problem, variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return pixels and labels of one solution, given the labels that it started from."""

    def problem(self, obs: Observation) -> Problem:
        """Return what is to be solved."""
        return as_problem(obs, who=self.who, unroll=self.fedavg == "unrolled")

    def known(self, obs: Observation, problem: Problem) -> tuple[Tensor, list[str]]:
        """Return the labels to start from (B,) and notes on them."""
        return known_labels(obs, problem, self.labels, who=self.who)

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        return self.many([obs], on_step=on_step)[0]

    def many(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates to one model in one graph, which is several times faster."""
        if not observations:
            return []
        problems = [self.problem(obs) for obs in observations]
        known = [self.known(obs, p) for obs, p in zip(observations, problems, strict=True)]
        solutions = match_gradients(
            problems,
            [labels for labels, _ in known],
            self.recipe(problems[0]),
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
            result = self._reconstruction(problem, solution, labels, notes)
            # the search may be more precise than the model
            results.append(replace(result, images=result.images.to(next(obs.model.parameters()).dtype)))
        return results

    def _knowledge(self, obs: Observation, problem: Problem) -> list[str]:
        if not self.adaptive:
            return []
        sent = f"{int(problem.sent.sum())} of {problem.sent.numel()} entries"
        which = "that were sent" if obs.sent is not None else "that are not zero, taken for all that was sent"
        return [f"adaptive: matched only the {sent} {which}"]

    def _reconstruction(
        self, problem: Problem, solution: Solution, labels: Tensor, notes: list[str]
    ) -> Reconstruction:
        objective = float(solution.objective[solution.best])
        if not math.isfinite(objective):
            notes.append("no guess had a finite objective: the images are noise")
        best = {name: value[solution.best] for name, value in solution.variables.items()}
        pixels, labels = self.read(problem, best, labels)
        return Reconstruction(
            images=pixels.clamp(0, 1),
            labels=labels,
            objective=objective if math.isfinite(objective) else None,
            notes=tuple(notes),
        )
