"""The row of one membership attack on a run: how well it tells members from strangers."""

from __future__ import annotations

import math
from typing import Any

from pydantic import Field

from fl_app.results.rows import Row, Whole


class MemberPoint(Row):
    """Rates at a threshold that one half of the candidates chose and the other half reports."""

    rate: float
    """The false-alarm rate that the threshold was chosen for."""
    tpr: float | None = None
    """Share of members that it finds; null: too few candidates for this rate."""
    tpr_low: float | None = None
    tpr_high: float | None = None
    """Clopper-Pearson interval of 95 %, likewise for ``fpr``."""
    fpr: float | None = None
    """Share of strangers that it takes for members."""
    fpr_low: float | None = None
    fpr_high: float | None = None
    hits: Whole | None = None
    alarms: Whole | None = None
    bound: float | None = None
    """Most that differential privacy allows at ``fpr``: e^epsilon fpr + delta; null: no such promise."""
    exceeds: bool | None = None
    """Whether the point lies above the bound, with all intervals of the attack holding together at 95 %."""


class Statistic(Row):
    """One score of candidates, over all of them and at some false-alarm rates."""

    auc: float
    auc_low: float
    auc_high: float
    points: list[MemberPoint] = Field(default_factory=list)
    roc: list[list[float]] = Field(default_factory=list)
    """Corners of the curve: false alarms and hits."""
    scores: list[float] = Field(default_factory=list)
    """Score of each candidate; a larger one says that it is likelier a member."""


class Membership(Row):
    """One attack on membership, in one form."""

    attack: str = "membership"
    viewpoint: str
    """`server`, `participant` or `final`."""
    clients: list[Whole] = Field(default_factory=list)
    """Clients whose candidates were asked about."""
    participant: Whole | None = None
    adaptive: bool = False
    active: bool = False
    rounds: list[Whole] = Field(default_factory=list)
    """Rounds that the attacker saw."""
    members: Whole = 0
    strangers: Whole = 0
    reporting_members: Whole = 0
    """Those of the half that reports."""
    reporting_strangers: Whole = 0
    best: str | None = None
    """The statistic with the largest AUC on the choosing half; null: the attack gave up."""
    best_auc: float | None = None
    """Its AUC on the reporting half, with an interval of 95 %."""
    best_auc_low: float | None = None
    best_auc_high: float | None = None
    statistics: dict[str, Statistic] = Field(default_factory=dict)
    truth: list[bool] = Field(default_factory=list)
    """Which candidates were members, in the order of the scores."""
    epsilon: float | None = None
    """Promise of differential privacy to this observer."""
    delta: float | None = None
    shadows: Whole = 0
    settings: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    gave_up: str | None = None
    seconds: float | None = None

    @property
    def promise(self) -> tuple[float, float] | None:
        """Epsilon and delta; None without a promise, or with numbers that are none."""
        epsilon, delta = self.epsilon, self.delta or 0.0
        if epsilon is None or not (math.isfinite(epsilon) and epsilon >= 0 and 0 <= delta <= 1):
            return None
        return epsilon, delta

    @property
    def exceeds_bound(self) -> bool:
        """Whether some point refutes the promise of differential privacy."""
        return any(point.exceeds for one in self.statistics.values() for point in one.points)

    @property
    def tells_members(self) -> bool | None:
        """Whether the interval of the best AUC lies above a guess; None: not measured."""
        return None if self.best_auc_low is None else self.best_auc_low > 0.5
