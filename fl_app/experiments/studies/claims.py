"""Verdict on a claim, with its numbers in words.

Images and attacked updates are many, so the signs of their differences are tested; seeds are
few, so Student's test is taken. All tests of a study are judged together (Holm).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fl_app.experiments.studies.measured import Key, Measured, Selection, average, select
from fl_app.experiments.studies.significance import holm, sign_flip_p, student_interval, student_p
from fl_app.experiments.studies.study_file import Claim
from fl_app.report.data.formats import format_count
from fl_app.results import study
from fl_app.results.study import FAILS, HOLDS, OPEN, UNKNOWN, StudyClaim

LEVEL = 0.05
LEAST = {"image": 20, "update": 20, "seed": 3}
"""Smallest number of units for a test."""
_NAMED_ALONE = 3
_SIGNS = {"less": "<", "more": ">", "at_least": "≥", "at_most": "≤"}


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict."""

    claim: Claim
    verdict: study.Verdict
    words: str
    left: float | None = None
    right: float | None = None
    n: int = 0
    p: float | None = None
    p_holm: float | None = None

    @property
    def unit(self) -> str:
        """Noun for the units of the differences."""
        return _unit(self.claim)


def judge(claims: Sequence[Claim], cells: Sequence[Measured]) -> list[Verdict]:
    """Return a verdict for every claim."""
    found = [_compare(claim, cells) for claim in claims]
    tested = [number for number, finding in enumerate(found) if finding.verdict.p is not None]
    adjusted = dict(zip(tested, holm([found[number].verdict.p or 0.0 for number in tested]), strict=True))
    return [_decide(finding, adjusted.get(number)) for number, finding in enumerate(found)]


@dataclass(frozen=True)
class _Finding:
    """Findings on a claim before all are judged together."""

    verdict: Verdict
    right_way: bool = False
    remarks: tuple[str, ...] = ()


def _compare(claim: Claim, cells: Sequence[Measured]) -> _Finding:
    sides = [select(cells, selector) for selector in (claim.left, claim.right) if selector is not None]
    for side in sides:
        if side.missing is not None:
            return _Finding(Verdict(claim, UNKNOWN, side.missing))
    left, right = sides[0], sides[1] if len(sides) > 1 else None
    if claim.exact or (claim.left.metric is not None and claim.left.metric.counted):
        return _exactly(claim, left, right)
    values, remarks = _paired(left, right)
    if not values:
        return _Finding(Verdict(claim, UNKNOWN, f"the sides have no {left.unit} in common"))
    differences = list(average({key: a - b for key, (a, b) in values.items()}, left.unit).values())
    verdict = Verdict(
        claim,
        OPEN,
        "",
        left=_mean({key: a for key, (a, _) in values.items()}, left.unit),
        right=claim.bound if right is None else _mean({key: b for key, (_, b) in values.items()}, left.unit),
        n=len(differences),
    )
    gains = _gains(claim, differences)
    means = [statistics.fmean(gain) for gain in gains]
    right_way = all(mean > 0 or (mean == 0 and claim.bound is not None) for mean in means)
    enough = len(differences) >= LEAST[left.unit]
    remarks += _interval(claim, differences) if left.unit == "seed" else []
    remarks += _forms(sides)
    if not enough:
        return _Finding(verdict, right_way, tuple(remarks))
    p = max(student_p(gain) if left.unit == "seed" else sign_flip_p(gain) for gain in gains)
    return _Finding(replace(verdict, p=p), right_way, tuple(remarks))


def _exactly(claim: Claim, left: Selection, right: Selection | None) -> _Finding:
    """Compare two numbers without a test: counts, or the least and greatest of many."""
    a = taken(left, claim.left.take)
    b = claim.bound if right is None or claim.right is None else taken(right, claim.right.take)
    gains = _gains(claim, [a - (b or 0.0)]) if right is not None else _gains(claim, [a])
    holds = all(gain[0] >= 0 for gain in gains) if claim.bound is not None else gains[0][0] > 0
    verdict = Verdict(claim, HOLDS if holds else FAILS, "", a, b, len(left.by_unit()))
    return _Finding(verdict, holds, tuple(_forms([left] if right is None else [left, right])))


def _gains(claim: Claim, differences: Sequence[float]) -> list[list[float]]:
    """Return differences, left minus right, whose mean must be above 0 for the claim to hold."""
    bound = claim.bound or 0.0
    up = [value - bound for value in differences]
    down = [bound - value for value in differences]
    shortfall = [value + bound for value in differences]
    return {
        "less": [[-value for value in differences]],
        "more": [list(differences)],
        "at_least": [up],
        "at_most": [down],
        "loses_at_most": [shortfall],
        "within": [shortfall, down],
    }[claim.comparison]


def _paired(left: Selection, right: Selection | None) -> tuple[dict[Key, tuple[float, float]], list[str]]:
    """Return the values that both sides have, and words about those that only one has."""
    if right is None:
        return {key: (value, 0.0) for key, value in left.values.items()}, []
    both = {key: (value, right.values[key]) for key, value in left.values.items() if key in right.values}
    alone = sorted((left.values.keys() ^ right.values.keys()), key=str)
    if not alone:
        return both, []
    named = ", ".join(_key_words(key, left.unit) for key in alone[:_NAMED_ALONE])
    more = f" and {len(alone) - _NAMED_ALONE} more" if len(alone) > _NAMED_ALONE else ""
    return both, [f"left out, as only one side has it: {named}{more}"]


def _key_words(key: Key, unit: str) -> str:
    repetition, place = key
    names = ("client", "round", "image")
    words = [f"{name} {value}" for name, value in zip(names, place, strict=False)]
    return " ".join([*repetition, *words] if unit != "seed" else repetition)


def taken(selection: Selection, take: str) -> float:
    """Return the one number that a selector asks of its values."""
    if take == "mean":
        return statistics.fmean(selection.by_unit().values())
    return {"min": min, "max": max}[take](selection.values.values())


def _mean(values: Mapping[Key, float], unit: str) -> float:
    return statistics.fmean(average(values, unit).values())


def _interval(claim: Claim, differences: Sequence[float]) -> list[str]:
    if len(differences) < 2:
        return []
    low, high = student_interval(differences)
    what = "mean" if claim.right is None else "difference"
    return [f"{what} {_number(statistics.fmean(differences))}, 95 % [{_number(low)}, {_number(high)}]"]


def _forms(sides: Sequence[Selection]) -> list[str]:
    forms = [side.form for side in sides if side.form is not None]
    lost = sum(side.not_found for side in sides)
    words = [f"attacker: {' against '.join(dict.fromkeys(forms))}"] if forms else []
    return words + ([f"{lost} {sides[0].unit}s not found"] if lost else [])


def _decide(finding: _Finding, p_holm: float | None) -> Verdict:
    verdict = finding.verdict
    if verdict.verdict == UNKNOWN:
        return replace(verdict, words=f"{UNKNOWN}: {verdict.words}")
    found = verdict.verdict
    if verdict.p is not None and p_holm is not None:
        found = FAILS if not finding.right_way else HOLDS if p_holm <= LEVEL else OPEN
    judged = replace(verdict, verdict=found, p_holm=p_holm)
    return replace(judged, words=_words(judged, finding.remarks))


def _words(verdict: Verdict, remarks: Sequence[str]) -> str:
    parts = [_verdict_words(verdict), _numbers(verdict), _count(verdict.n, verdict.unit)]
    if verdict.p is not None:
        after = "" if verdict.p_holm == verdict.p else f" ({_number(verdict.p_holm)} after Holm)"
        parts.append(f"p = {_number(verdict.p)}{after}")
    return "; ".join([", ".join(parts), *remarks])


def _verdict_words(verdict: Verdict) -> str:
    few = verdict.verdict == OPEN and verdict.p is None
    return f"{OPEN}: too few {verdict.unit}s ({verdict.n})" if few else verdict.verdict


def _numbers(verdict: Verdict) -> str:
    claim, left, right = verdict.claim, _number(verdict.left), _number(verdict.right)
    if claim.comparison in ("within", "loses_at_most"):
        allowed = "within" if claim.comparison == "within" else "at most"
        lost = "" if claim.comparison == "within" else " lost"
        return f"{left} against {right}, {allowed} {_number(claim.bound)}{lost}"
    sign = _SIGNS[claim.comparison]
    if (
        verdict.left is not None
        and verdict.right is not None
        and not _true(sign, verdict.left, verdict.right)
    ):
        sign = {"<": "≥", ">": "≤", "≥": "<", "≤": ">"}[sign]
    return f"{left} {sign} {right}"


def _true(sign: str, left: float, right: float) -> bool:
    return {"<": left < right, ">": left > right, "≥": left >= right, "≤": left <= right}[sign]


def _count(n: int, unit: str) -> str:
    return f"{format_count(n)} {unit}{'' if n == 1 else 's'}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _unit(claim: Claim) -> str:
    return "seed" if claim.left.metric is None else claim.left.metric.unit


def study_claim(verdict: Verdict) -> StudyClaim:
    """Return a verdict as study.json has it."""
    return StudyClaim(
        name=verdict.claim.name,
        text=verdict.claim.text,
        verdict=verdict.verdict,
        words=verdict.words,
        left=verdict.left,
        right=verdict.right,
        n=verdict.n,
        unit=verdict.unit,
        p=verdict.p,
        p_holm=verdict.p_holm,
    )
