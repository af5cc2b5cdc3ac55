"""Snapshots of a search, evenly spaced however long it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from attacks.optimisation.evidence import Evidence
from attacks.optimisation.optimisers import Variables


class Stop(NamedTuple):
    """One iterate of one guess."""

    step: int
    """Number of steps taken; 0 is the start."""
    variables: Variables
    objective: float
    distance: float
    """Mean squared difference of the guessed and the observed gradient."""
    layers: Mapping[str, float]
    """The same distance by parameter."""


class Seen(NamedTuple):
    """One iterate of a whole stack: what `Stop` has, with an axis of guesses (P,)."""

    variables: Variables
    objective: Tensor
    distance: Tensor
    layers: Mapping[str, Tensor]


class Trail:
    """Keeps at most ``number`` iterates of a stack, and the last one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.every = 1
        self.kept: dict[int, Variables] = {}
        self.last: dict[int, Variables] = {}

    def note(self, step: int, variables: Variables) -> None:
        """Add an iterate; if there are too many, drop every other one."""
        if not self.number:
            return
        self.last = {step: {name: value.detach().clone() for name, value in variables.items()}}
        if step % self.every == 0:
            self.kept |= self.last
        while len(self.kept) > self.number:
            self.every *= 2
            self.kept = {step: seen for step, seen in self.kept.items() if step % self.every == 0}

    @property
    def seen(self) -> dict[int, Variables]:
        """The iterates of all problems, by the number of steps that led there."""
        return self.kept | self.last


def differences(
    gradient: Tensor, evidence: Evidence, sizes: Mapping[str, int], *, masked: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return each guess's mean squared difference (P,) from the observed gradient, in all and by parameter.

    As in Fig. 4 of Zhu et al. 2019. If ``masked``, over the entries that were sent. Gradients of several
    rounds are concatenated: a parameter's are then taken together.
    """
    counted = evidence.sent if masked else evidence.sent.new_ones(evidence.sent.shape)
    squares = (gradient - evidence.before - evidence.target).square() * counted
    rounds = len(gradient), -1, sum(sizes.values())

    def by_parameter(values: Tensor) -> list[Tensor]:
        return [part.sum(dim=(1, 2)) for part in values.view(rounds).split(list(sizes.values()), dim=2)]

    def mean(total: Tensor, number: Tensor) -> Tensor:
        return total / number.clamp_min(1)

    parts = zip(sizes, by_parameter(squares), by_parameter(counted), strict=True)
    return mean(squares.sum(dim=1), counted.sum(dim=1)), {name: mean(*pair) for name, *pair in parts}


def stops_of(guess: int, solved_after: int | None, seen: Mapping[int, Seen]) -> tuple[Stop, ...]:
    """Return where one guess of a stack stood, up to the step that solved it: after that it stays there."""
    stops = []
    for step in sorted(seen):
        here = seen[step]
        last = step if solved_after is None else min(step, solved_after)
        stops.append(
            Stop(
                last,
                {name: value[guess] for name, value in here.variables.items()},
                float(here.objective[guess]),
                float(here.distance[guess]),
                {name: float(values[guess]) for name, values in here.layers.items()},
            )
        )
        if last == solved_after:
            break
    return tuple(stops)
