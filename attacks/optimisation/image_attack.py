"""Base of the attacks on images: from observations to problems, a recipe, and results with notes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from attacks.base import Reconstruction, Snapshot, StepListener
from attacks.optimisation.adaptation import TOGETHER, informed, informed_recipe
from attacks.optimisation.known_labels import SOURCES, known_labels
from attacks.optimisation.matching import Recipe, Solution, match_gradients
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem, as_problem
from attacks.optimisation.rehearsal import differences_of, rehearse
from attacks.optimisation.trail import Stop
from attacks.rewrites import undo_rewrites
from attacks.rounds.in_order import match_in_order
from fl_app.types import Observation

FEDAVG = ("single", "unrolled")


@dataclass(frozen=True, kw_only=True)
class ImageAttack(ABC):
    """Settings that all searches for images share; subclasses define the search."""

    steps: int
    restarts: int = 1
    """Independent searches; the one with the lowest objective is kept."""
    adaptive: bool = False
    """The attacker knows the defense: see `attacks.optimisation.adaptation`."""
    labels: str = "auto"
    """Source of the labels: "granted" by the observation, "infer" from the output layer, or "auto":
    inferred unless granted."""
    seed: int = 0
    time_budget: float | None = None
    """Seconds after which the search ends with the best result so far."""
    fedavg: str = "single"
    """Match an update of several local steps as a "single" one (divided by their number and the
    learning rate), or "unrolled", which costs as many backward passes."""
    together: str = "auto"
    """Use of earlier rounds if ``adaptive``: one of `attacks.optimisation.adaptation.TOGETHER`."""
    rehearsals: int = 4
    """Updates of the attacker's own images on which it chooses its settings first, if it has any; 0: none."""
    rehearsal_budget: float = 8.0
    """Most steps of all rehearsals together, in steps of one attack; fewer are taken in proportion."""
    trace: int = 0
    """Maximum number of snapshots kept of the search, beside the last one."""

    who: ClassVar[str]
    """Name of the attack in errors."""
    sources: ClassVar[tuple[str, ...]] = SOURCES
    """Valid values of ``labels``."""

    def __post_init__(self) -> None:
        for name, number in (("steps", self.steps), ("restarts", self.restarts)):
            if number < 1:
                raise ValueError(f"{self.who}: {name} must be at least 1, got {number}")
        if isinstance(self.trace, bool) or not isinstance(self.trace, int) or self.trace < 0:
            raise ValueError(f"{self.who}: trace must be an integer, 0 or more, got {self.trace!r}")
        if self.labels not in self.sources:
            raise ValueError(f"{self.who}: labels must be one of {self.sources}, got {self.labels!r}")
        if self.fedavg not in FEDAVG:
            raise ValueError(f"{self.who}: fedavg must be one of {FEDAVG}, got {self.fedavg!r}")
        if self.rehearsals < 0:
            raise ValueError(f"{self.who}: rehearsals must be 0 or more, got {self.rehearsals}")
        if not self.rehearsal_budget > 0:
            raise ValueError(f"{self.who}: rehearsal_budget must be positive, got {self.rehearsal_budget}")
        if self.together not in TOGETHER:
            raise ValueError(f"{self.who}: together must be one of {TOGETHER}, got {self.together!r}")
        if self.time_budget is not None and not self.time_budget > 0:
            raise ValueError(
                f"{self.who}: time_budget must be positive seconds or None, got {self.time_budget}"
            )

    @abstractmethod
    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return the search for ``observations``, of which ``problem`` is the first."""

    @abstractmethod
    def read(
        self, obs: Observation, problem: Problem, variables: Variables, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return pixels and labels of one solution, given the labels that it started from."""

    def problem(self, obs: Observation) -> Problem:
        """Return the matching problem of an observation."""
        return as_problem(obs, who=self.who, unroll=self.fedavg == "unrolled")

    def known(self, obs: Observation, problem: Problem) -> tuple[Tensor, list[str]]:
        """Return the labels to start from (B,) and notes on them."""
        return known_labels(obs, problem, self.labels, who=self.who)

    def remarks(self, obs: Observation) -> list[str]:
        """Return further notes for a result."""
        return []

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        return self.many([obs], on_step=on_step)[0]

    def options(self) -> list[Self]:
        """Return the settings that an attacker with images of its own tries first; none: these are fixed."""
        return []

    def refinements(self) -> list[Self]:
        """Return the settings that it tries next, beside those that did best."""
        return []

    def many(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates to one model, with the settings that did best in rehearsal."""
        first = observations[0] if observations else None
        if first is None or first.known is None or self.rehearsals == 0 or not self.options():
            return self.search(observations, on_step=on_step)
        chosen, score = rehearse(self, first, updates=self.rehearsals, budget=self.rehearsal_budget)
        note = (
            f"rehearsed on {self.rehearsals} updates of the attacker's own images: "
            f"{differences_of(chosen)} (SSIM {score:.2f} there)"
        )
        return [
            replace(result, notes=(*result.notes, note))
            for result in chosen.search(observations, on_step=on_step)
        ]

    def search(
        self, observations: Sequence[Observation], *, on_step: StepListener | None = None
    ) -> list[Reconstruction]:
        """Attack several updates with these settings, in one graph, which is several times faster."""
        if not observations:
            return []
        for obs in observations:
            _check_outputs(obs, self.who)
        seen = [self.see(obs) for obs in observations]
        problems = [problem for _, problem in seen]
        known = [self.known(obs, problem) for obs, problem in seen]
        recipe = self.recipe(problems[0], observations)
        if self.adaptive:
            recipe = informed_recipe(recipe, seen[0][0], problems[0])
        search = match_in_order if _is_stream(problems[0]) else match_gradients
        solutions = search(
            problems,
            [labels for labels, _ in known],
            recipe,
            restarts=self.restarts,
            seed=self.seed,
            time_budget=self.time_budget,
            on_step=on_step,
            trail=self.trace,
        )
        results = []
        for obs, problem, (labels, notes), solution in zip(
            observations, problems, known, solutions, strict=True
        ):
            if recipe.masked and not problem.sent.all():
                notes = [*notes, _what_is_matched(obs, problem)]
            notes = [*problem.notes, *_doubts(obs, problem), *notes, *self.remarks(obs), *solution.notes]
            result = self._reconstruction(obs, problem, solution, labels, notes)
            # the search may be more precise than the model
            result = replace(result, images=result.images.to(next(obs.model.parameters()).dtype))
            if _is_stream(problem) and problem.rounds is not None:
                result = _of_stream(result, len(problem.rounds.states))
            if self.adaptive:
                images, about = undo_rewrites(result.images, obs.rewrites)
                result = replace(result, images=images, notes=(*result.notes, *about))
            results.append(result)
        return results

    def see(self, obs: Observation) -> tuple[Observation, Problem]:
        """Return the observation and the problem from this attacker's view."""
        return informed(obs, self.problem, self.together) if self.adaptive else (obs, self.problem(obs))

    def _reconstruction(
        self, obs: Observation, problem: Problem, solution: Solution, labels: Tensor, notes: list[str]
    ) -> Reconstruction:
        objective = float(solution.objective[solution.best])
        if not math.isfinite(objective):
            notes.append("no guess had a finite objective: the images are noise")
        best = {name: value[solution.best] for name, value in solution.variables.items()}
        pixels, labels = self.read(obs, problem, best, labels)
        return Reconstruction(
            images=pixels.clamp(0, 1),
            labels=labels,
            objective=objective if math.isfinite(objective) else None,
            notes=tuple(notes),
            trace=tuple(self._snapshot(obs, problem, stop, labels) for stop in solution.trail),
            iterations=solution.solved_after,
        )

    def _snapshot(self, obs: Observation, problem: Problem, stop: Stop, labels: Tensor) -> Snapshot:
        pixels, _ = self.read(obs, problem, stop.variables, labels)
        return Snapshot(stop.step, stop.objective, stop.distance, stop.layers, pixels.clamp(0, 1))


def _is_stream(problem: Problem) -> bool:
    return problem.rounds is not None and problem.rounds.stream


def _of_stream(result: Reconstruction, rounds: int) -> Reconstruction:
    """Return the images of the attacked round, with those of earlier ones apart."""
    *earlier, own = result.images.chunk(rounds)
    labels = None if result.labels is None else result.labels.chunk(rounds)[-1]
    trace = tuple(replace(shot, images=shot.images.chunk(rounds)[-1]) for shot in result.trace)
    return replace(result, images=own, labels=labels, earlier=tuple(earlier), trace=trace)


def check_weight(who: str, name: str, weight: float) -> None:
    """Refuse the weight of a prior that is negative or not finite."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"{who}: {name} must be finite and not negative, got {weight}")


def check_step_size(who: str, lr: float) -> None:
    """Refuse a step size that is not positive or not finite."""
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"{who}: lr must be finite and positive, got {lr}")


def _check_outputs(obs: Observation, who: str) -> None:
    """Refuse a model with a single logit, because its client uses a different loss."""
    rows = [len(parameter) for parameter in obs.model.parameters() if parameter.ndim == 2]
    if rows and rows[-1] == 1:
        raise ValueError(
            f"{who}: matches the cross-entropy of models with one logit a class, got a model with one logit "
            "for two classes; rgap solves for the images of such models"
        )


def _doubts(obs: Observation, problem: Problem) -> list[str]:
    mistake = replace(obs, batch_size=problem.batch_size).likely_mistake()
    return [] if mistake is None else [mistake]


def _what_is_matched(obs: Observation, problem: Problem) -> str:
    which = "that are known" if obs.sent is not None else "that are not zero, taken for all that was sent"
    return f"adaptive: matched only the {int(problem.sent.sum())} of {problem.sent.numel()} entries {which}"
