"""Evidence on a claim: the test that its metric allows, and the probabilities of the verdicts.

| values | test | centre |
|---|---|---|
| of seeds | Student | mean |
| of updates, two sides | sign flips | centre of symmetry |
| of updates against a bound or with a margin: 0 or 1 | exact binomial | share |
| likewise, between two numbers | betting | mean |
| likewise, others | sign test | median |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_app.experiments.studies.bounded_mean import (
    betting_interval,
    betting_p,
    binomial_interval,
    binomial_p,
)
from fl_app.experiments.studies.metrics import Metric
from fl_app.experiments.studies.significance import (
    Interval,
    sign_flip_interval,
    sign_flip_p,
    sign_interval,
    sign_p,
    student_interval,
    student_p,
)
from fl_app.experiments.studies.study_file import Claim
from fl_app.results.study import EQUIVALENT, HOLDS, REFUTED, Verdict

Tail = Callable[[Sequence[float], float], float]


@dataclass(frozen=True)
class Method:
    """A test for the centre of values, and its confidence interval."""

    name: str
    above: Tail
    """P-value of the values against a centre of at most a number."""
    below: Tail
    """P-value of the values against a centre of at least a number."""
    interval: Callable[[Sequence[float]], Interval | None]


def _two_tails(name: str, above: Tail, interval: Callable[[Sequence[float]], Interval | None]) -> Method:
    return Method(name, above, lambda values, bound: above([-value for value in values], -bound), interval)


STUDENT = _two_tails("Student", student_p, student_interval)
SIGN_FLIPS = _two_tails(
    "sign flips",
    lambda values, bound: sign_flip_p([value - bound for value in values]),
    sign_flip_interval,
)
MEDIAN = _two_tails("sign test", sign_p, sign_interval)
BINOMIAL = Method(
    "exact binomial",
    binomial_p,
    lambda values, bound: binomial_p([1 - value for value in values], 1 - bound),
    binomial_interval,
)


@dataclass(frozen=True)
class Evidence:
    """Probabilities of the data under the opposite of each verdict, and an interval."""

    test: str
    p: dict[Verdict, float]
    interval: Interval | None

    @property
    def verdict(self) -> Verdict:
        """Best supported verdict; a tie goes to a direction over equivalence."""
        return min(self.p, key=lambda verdict: self.p[verdict])

    @property
    def two_sided(self) -> float:
        """Twice the smallest probability: whatever is true, some verdict is wrong at most that often."""
        return min(1.0, 2 * min(self.p.values()))


def weigh(claim: Claim, values: Sequence[float], metric: Metric, margin: float | None = None) -> Evidence:
    """Return the evidence of ``values``, one for each unit: left minus right, or left if there is no right.

    ``margin`` is the smallest difference of both sides that matters; None: nothing is called equivalent.
    """
    paired = claim.right is not None
    bounded = STUDENT if metric.unit == "seed" else _bounded(metric, paired, values)
    plain = claim.comparison in ("less", "more")
    directed = SIGN_FLIPS if plain and metric.unit != "seed" else bounded
    bound = claim.bound or 0.0
    up, down = directed.above, directed.below

    def within(reach: float) -> float:
        return max(bounded.above(values, -reach), bounded.below(values, reach))

    if claim.comparison in ("more", "at_least"):
        p: dict[Verdict, float] = {HOLDS: up(values, bound), REFUTED: down(values, bound)}
    elif claim.comparison in ("less", "at_most"):
        p = {HOLDS: down(values, bound), REFUTED: up(values, bound)}
    elif claim.comparison == "loses_at_most":
        p = {HOLDS: up(values, -bound), REFUTED: down(values, -bound)}
    else:
        outside = min(down(values, -bound), up(values, bound))
        p = {HOLDS: within(bound), REFUTED: min(1.0, 2 * outside)}
    if plain and margin is not None:
        p[EQUIVALENT] = within(margin)
    return Evidence(directed.name, p, directed.interval(values))


def _bounded(metric: Metric, paired: bool, values: Sequence[float]) -> Method:
    if metric.range is None:
        return MEDIAN
    if metric.binary and not paired and set(values) <= {0, 1}:
        return BINOMIAL
    low, high = metric.range
    return betting(low - high, high - low) if paired else betting(low, high)


def betting(low: float, high: float) -> Method:
    """Return the test of scores between two numbers; scores beyond are clamped."""
    width = high - low

    def scaled(values: Sequence[float]) -> list[float]:
        return [min(max((value - low) / width, 0.0), 1.0) for value in values]

    def below(values: Sequence[float], bound: float) -> float:
        return betting_p([1 - score for score in scaled(values)], (high - bound) / width)

    def interval(values: Sequence[float]) -> Interval:
        found = betting_interval(scaled(values))
        return Interval(low + width * found.low, low + width * found.high)

    return Method(
        "betting", lambda values, bound: betting_p(scaled(values), (bound - low) / width), below, interval
    )
