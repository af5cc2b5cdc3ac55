"""The row of a property attack on a run: how often it told what a client's samples have in common."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from fl_app.results.rows import Row, Whole


class PropertyAnswer(Row):
    """One guess about the samples behind one update."""

    round: Whole
    client: Whole
    score: float
    """Above 0 is a yes."""
    truth: bool | None = None
    """Null: the client does not allow audits."""


class PropertyInference(Row):
    """All guesses of one form of the attack."""

    attack: str = "property"
    trait: str
    holds: str
    adaptive: bool = False
    answers: list[PropertyAnswer] = Field(default_factory=list)
    right: Whole = 0
    asked: Whole = 0
    """Answers whose truth is known."""
    rate: float | None = None
    rate_low: float | None = None
    rate_high: float | None = None
    """Clopper-Pearson interval of 95 %."""
    baseline: float | None = None
    """Share that is right if the same answer is always given, the better one."""
    expected: float | None = None
    """Mean success on left-out examples."""
    examples: Whole = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    gave_up: str | None = None
    seconds: float | None = None

    @property
    def tells(self) -> bool | None:
        """Whether its interval lies above the baseline; None: not measured."""
        return None if self.rate_low is None or self.baseline is None else self.rate_low > self.baseline
