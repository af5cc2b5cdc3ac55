"""Verdict on a claim, with its numbers in words.

Verdicts are symmetric: the same test at the same level confirms or refutes a claim. Images of one update
share a gradient, so the unit is the update.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fl_app.experiments.studies.evidence import weigh
from fl_app.experiments.studies.measured import Key, Measured, Selection, average, select
from fl_app.experiments.studies.metrics import Metric
from fl_app.experiments.studies.protocol import EXPLORATORY, Protocol, family_size
from fl_app.experiments.studies.significance import Interval
from fl_app.experiments.studies.study_file import Claim, Study
from fl_app.report.data.formats import format_count
from fl_app.results import study
from fl_app.results.study import EQUIVALENT, HOLDS, OPEN, REFUTED, UNKNOWN, StudyClaim

LEVEL = 0.05
LEAST = {"update": 6, "seed": 3}
"""Smallest number of units for a test: with fewer updates, even equal signs decide nothing."""
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
    interval: Interval | None = None
    n: int = 0
    test: str | None = None
    p: float | None = None
    p_family: float | None = None
    role: study.Role = EXPLORATORY
    repeats: str | None = None

    @property
    def unit(self) -> str:
        """Noun for the counted units."""
        return _unit(self.claim.left.metric)


def judge(own: Study, cells: Sequence[Measured], protocol: Protocol) -> list[Verdict]:
    """Return a verdict for every claim of a study."""
    roles = [protocol.role_of(own.name, claim.name) for claim in own.claims]
    verdicts = []
    for claim, role in zip(own.claims, roles, strict=True):
        tests = family_size(protocol, own.name, claim.name) or roles.count(EXPLORATORY)
        finding = _compare(claim, cells, protocol)
        twin = protocol.repeats.get(f"{own.name}/{claim.name}")
        placed = replace(finding.verdict, role=role, repeats=twin)
        verdicts.append(_decide(replace(finding, verdict=placed), tests))
    return verdicts


@dataclass(frozen=True)
class _Finding:
    """Findings on a claim before correction for its family; a verdict with p is the best supported one."""

    verdict: Verdict
    remarks: tuple[str, ...] = ()


def _compare(claim: Claim, cells: Sequence[Measured], protocol: Protocol) -> _Finding:
    sides = [select(cells, selector) for selector in (claim.left, claim.right) if selector is not None]
    for side in sides:
        if side.missing is not None:
            return _Finding(Verdict(claim, UNKNOWN, side.missing))
    left, right = sides[0], sides[1] if len(sides) > 1 else None
    metric = claim.left.metric
    if metric is None or claim.exact or metric.counted:
        return _exactly(claim, left, right)
    unit = _unit(metric)
    values, remarks = _paired(left, right)
    if not values:
        return _Finding(Verdict(claim, UNKNOWN, f"the sides have no {left.unit} in common"))
    # of the left side: where both attack the same samples, those are the right one's too
    mean = partial(average, unit=unit, identities=left.identities)
    differences = list(mean({key: a - b for key, (a, b) in values.items()}).values())
    verdict = Verdict(
        claim,
        OPEN,
        "",
        left=statistics.fmean(mean({key: a for key, (a, _) in values.items()}).values()),
        right=claim.bound
        if right is None
        else statistics.fmean(mean({key: b for key, (_, b) in values.items()}).values()),
        n=len(differences),
    )
    said = (*remarks, *_forms(sides))
    if len(differences) < LEAST[unit]:
        return _Finding(verdict, said)
    evidence = weigh(claim, differences, metric, protocol.margin_of(metric.name))
    found = replace(
        verdict,
        verdict=evidence.verdict,
        test=evidence.test,
        interval=evidence.interval,
        p=evidence.two_sided,
    )
    return _Finding(found, said)


def _exactly(claim: Claim, left: Selection, right: Selection | None) -> _Finding:
    """Compare two numbers without a test: counts, or the least and greatest of many."""
    a = taken(left, claim.left.take)
    b = claim.bound if right is None or claim.right is None else taken(right, claim.right.take)
    difference, bound = a - (b or 0.0), claim.bound or 0.0
    holds = {
        "less": difference < 0,
        "more": difference > 0,
        "at_least": difference >= 0,
        "at_most": difference <= 0,
        "loses_at_most": difference >= -bound,
        "within": abs(difference) <= bound,
    }[claim.comparison]
    found = Verdict(claim, HOLDS if holds else REFUTED, "", a, b, n=len(left.by_unit()))
    return _Finding(found, tuple(_forms([left] if right is None else [left, right])))


def _paired(left: Selection, right: Selection | None) -> tuple[dict[Key, tuple[float, float]], list[str]]:
    """Return the values common to both sides, and remarks on those that only one side has."""
    if right is None:
        return {key: (value, 0.0) for key, value in left.values.items()}, []
    both = {key: (value, right.values[key]) for key, value in left.values.items() if key in right.values}
    remarks = []
    alone = sorted((left.values.keys() ^ right.values.keys()), key=str)
    if alone:
        named = ", ".join(_key_words(key, left.unit) for key in alone[:_NAMED_ALONE])
        more = f" and {len(alone) - _NAMED_ALONE} more" if len(alone) > _NAMED_ALONE else ""
        remarks.append(f"left out, as only one side has it: {named}{more}")
    hashed = left.identities.keys() & right.identities.keys() & both.keys()
    others = sum(left.identities[key][0] != right.identities[key][0] for key in hashed)
    if others:
        remarks.append(f"the sides are paired by place: {others} of {len(both)} samples differ between them")
    return both, remarks


def _key_words(key: Key, unit: str) -> str:
    repetition, place = key
    names = ("client", "round", "image")
    words = [f"{name} {value}" for name, value in zip(names, place, strict=False)]
    return " ".join([*repetition, *words] if unit != "seed" else repetition)


def taken(selection: Selection, take: str) -> float:
    """Return the number to which a selector reduces its values."""
    if take == "mean":
        return statistics.fmean(selection.by_unit().values())
    return {"min": min, "max": max}[take](selection.values.values())


def _forms(sides: Sequence[Selection]) -> list[str]:
    forms = [side.form for side in sides if side.form is not None]
    lost = sum(side.not_found for side in sides)
    words = [f"attacker: {' against '.join(dict.fromkeys(forms))}"] if forms else []
    return words + ([f"{lost} {sides[0].unit}s not found"] if lost else [])


def _decide(finding: _Finding, tests: int) -> Verdict:
    verdict = finding.verdict
    if verdict.verdict == UNKNOWN:
        return replace(verdict, words=f"{UNKNOWN}: {verdict.words}")
    if verdict.p is not None:
        p_family = min(1.0, tests * verdict.p)
        found = verdict.verdict if p_family <= LEVEL else OPEN
        verdict = replace(verdict, verdict=found, p_family=p_family)
    return replace(verdict, words=_words(verdict, tests, finding.remarks))


def _words(verdict: Verdict, tests: int, remarks: Sequence[str]) -> str:
    parts = [_verdict_words(verdict), _numbers(verdict), _count(verdict.n, verdict.unit)]
    parts += _interval_words(verdict)
    if verdict.p is not None:
        among = "" if tests == 1 else f" ({_number(verdict.p_family)} among {tests})"
        parts.append(f"{verdict.test}, p = {_number(verdict.p)}{among}")
    return "; ".join([", ".join(parts), *remarks])


def _interval_words(verdict: Verdict) -> list[str]:
    if verdict.interval is None:
        return []
    low, high = verdict.interval
    what = "mean" if verdict.claim.right is None else "difference"
    return [f"{what} 95 % [{_number(low)}, {_number(high)}]"]


def _verdict_words(verdict: Verdict) -> str:
    few = verdict.verdict == OPEN and verdict.p is None
    return f"{OPEN}: too few {verdict.unit}s ({verdict.n})" if few else verdict.verdict


def _numbers(verdict: Verdict) -> str:
    claim, left, right = verdict.claim, _number(verdict.left), _number(verdict.right)
    if verdict.verdict == EQUIVALENT:
        return f"{left} against {right}"
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


def _unit(metric: Metric | None) -> str:
    return "seed" if metric is None or metric.unit == "seed" else "update"


def study_claim(verdict: Verdict) -> StudyClaim:
    """Return a verdict in the form of study.json."""
    return StudyClaim(
        name=verdict.claim.name,
        text=verdict.claim.text,
        verdict=verdict.verdict,
        words=verdict.words,
        left=verdict.left,
        right=verdict.right,
        low=None if verdict.interval is None else verdict.interval.low,
        high=None if verdict.interval is None else verdict.interval.high,
        n=verdict.n,
        unit=verdict.unit,
        test=verdict.test,
        p=verdict.p,
        p_family=verdict.p_family,
        role=verdict.role,
        repeats=verdict.repeats,
    )
