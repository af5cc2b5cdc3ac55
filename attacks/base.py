"""Interface of an attack: a callable from an observation to a result with the assumptions it made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from torch import Tensor

from fl_app.types import Observation

READS = "reads"
"""Attribute of an attack that names the kind of samples it reads; images if absent."""
StepListener = Callable[[int, int, float], None]
"""Called with (steps done, steps in all, best objective so far); feeds a progress bar."""


# eq=False: comparing tensors yields tensors, so a generated __eq__ could only raise
@dataclass(frozen=True, eq=False)
class SolvedLayer:
    """Solution for the input of one layer, with measures of its reliability."""

    name: str
    """Name of the layer's weight."""
    input: Tensor
    rank: int
    """Rank of the equations; below the number of unknowns, the input is one of many."""
    condition: float
    """Ratio of the largest to the smallest non-zero singular value."""
    residual: float
    """Disagreement of the equations relative to their right-hand sides."""

    @property
    def unknowns(self) -> int:
        return self.input.numel()

    @property
    def determined(self) -> bool:
        return self.rank == self.unknowns

    def __str__(self) -> str:
        missing = self.unknowns - self.rank
        return (
            f"{self.name}: rank {self.rank} of {self.unknowns}, condition {self.condition:.1e}, "
            f"equations disagree by {self.residual:.1e}"
            + (f"; rank-deficient: {missing} directions are open" if missing else "")
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """State of a search at one iteration, by its own measures."""

    iteration: int
    """Number of steps taken; 0 is the start."""
    objective: float
    distance: float
    """Mean squared difference of the guessed and the observed gradient."""
    layers: Mapping[str, float]
    """The same distance by parameter."""
    images: Tensor
    """Images in the form of a `Reconstruction`."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images recovered from an update."""

    images: Tensor
    """Pixels in [0, 1] (N, C, H, W), one image per recovered sample."""
    labels: Tensor | None = None
    """Label that the attack used or found for each image (N,)."""
    objective: Tensor | float | None = None
    """The attack's own final objective, one or one per image; None if it was never finite."""
    notes: Sequence[str] = ()
    """Assumptions made, and premises that failed."""
    layers: Sequence[SolvedLayer] = ()
    """Layers in the order in which a layer-wise attack solved them."""
    trace: Sequence[Snapshot] = ()
    """Snapshots of a search from its start to its end, if requested."""
    earlier: Sequence[Tensor] = ()
    """Images of each earlier round, oldest first, where a stream of samples is attacked as a whole."""
    iterations: int | None = None
    """Steps that a search took to reach its target objective; None: it did not reach it."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a table recovered from an update."""

    values: Tensor
    """Rows (N, F) as the model sees them, categories as zeros and a one."""
    names: Sequence[str]
    """Names of the entries: ``column``, or ``column=value`` of a category."""
    certainty: Tensor | None = None
    """Agreement of the searches on each column (N, columns): numbers, then categories; 1 is full."""
    labels: Tensor | None = None
    objective: float | None = None
    notes: Sequence[str] = ()


NO_RULE = "none"
"""The `rule` of an answer without labels: no rule of the attack applied."""


@dataclass(frozen=True, eq=False)
class LabelSet:
    """Classes recovered from an update."""

    labels: Tensor
    """The distinct classes found (K,), the surest first."""
    counts: Tensor | None = None
    """Number of samples of each class (K,); None if the attack cannot tell."""
    rank: int | None = None
    """The numerical rank of the gradient, where the attack measures it."""
    notes: Sequence[str] = ()
    rule: str | None = None
    """Rule that gave the answer, `NO_RULE` if none could; None: the attack has only one rule."""


@dataclass(frozen=True, eq=False)
class Transcript:
    """A sequence of tokens recovered from an update."""

    tokens: Sequence[int]
    text: str | None = None
    objective: float | None = None
    notes: Sequence[str] = ()
    history: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Tokens read after each of these numbers of steps."""
    variables: int | None = None
    """Number of variables of one search."""
    rule: str | None = None
    """The rule that found the tokens to search among; None: all were searched."""


MEMBERS = "members"
"""`infers` of an attack that tells members from strangers; it takes an `Inquiry`."""


PROPERTY = "property"
"""`infers` of an attack on a property of the samples; it takes a `PropertyQuestion`."""


@dataclass(frozen=True, eq=False)
class PropertyGuess:
    """Answer whether an update's samples have a property."""

    score: float
    """Above 0 is a yes."""
    expected: float
    """Success on examples that the classifier did not see."""
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class MemberScores:
    """Scores of candidates by statistic; a larger one says that the candidate is likelier a member."""

    scores: Mapping[str, Tensor]
    """One number per candidate (N,)."""
    notes: Sequence[str] = ()


class Attack(Protocol):
    """Callable on an observation, never the truth; stops and selects by its own objective."""

    def __call__(
        self, obs: Observation, *, on_step: StepListener | None = None
    ) -> Reconstruction | LabelSet | Transcript: ...


A = TypeVar("A")


def reading(samples: str, attack: A) -> A:
    """Mark ``attack`` as reading "text" or "transcripts"; others read images."""
    setattr(attack, READS, samples)
    return attack


class LabelAttack(Protocol):
    """An attack that recovers labels alone."""

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> LabelSet: ...
