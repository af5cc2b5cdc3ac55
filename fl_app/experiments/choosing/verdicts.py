"""Verdicts on candidates: a limit counts as kept only if the whole interval keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fl_app.experiments.choosing.candidates import BASELINE
from fl_app.experiments.choosing.evidence import Evidence, Measure
from fl_app.report.data.formats import format_bytes
from fl_app.report.data.outcome import DEGRADED_FROM


@dataclass(frozen=True)
class Limits:
    """The most that the user accepts."""

    leak: float = DEGRADED_FROM
    """Mean SSIM of what the better attacker recovers."""
    loss: float = 2.0
    """Points of accuracy."""
    bytes: float | None = None
    """Bytes of a round, up and down, of all clients."""
    epsilon: float | None = None


@dataclass(frozen=True)
class Choice:
    """The recommended candidate, if there is one, and why each of the others lost."""

    best: str | None
    lost: Mapping[str, str]
    tied: tuple[str, ...] = ()
    """Candidates that keep all limits and leak no more than chance tells apart from the best."""
    weak: bool = False
    """The attack fails without a defense as well, so low leaks prove nothing."""


@dataclass
class _Sorting:
    kept: dict[str, Evidence] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def choose(evidence: Mapping[str, Evidence], limits: Limits) -> Choice:
    """Recommend the candidate that keeps all limits and leaks least; of equals that with fewest bytes."""
    bare = evidence[BASELINE].leak if BASELINE in evidence else None
    weak = bare is not None and bare.mean < DEGRADED_FROM
    sorting = _Sorting()
    for name, found in evidence.items():
        reasons = broken(found, limits)
        if reasons:
            sorting.lost[name] = "; ".join(reasons)
        else:
            sorting.kept[name] = found
    if weak or not sorting.kept:
        return Choice(None, sorting.lost, weak=weak)
    lowest = min(_leak(found).high for found in sorting.kept.values())
    equals = {name: found for name, found in sorting.kept.items() if _leak(found).low <= lowest}
    best = min(equals, key=lambda name: (equals[name].bytes or 0.0, _leak(equals[name]).mean))
    for name, found in sorting.kept.items():
        if name not in equals:
            sorting.lost[name] = f"keeps all limits, but leaks more than {best}: {_show(_leak(found), 3)}"
        elif name != best:
            more = f"{format_bytes(found.bytes)} a round instead of {format_bytes(equals[best].bytes)}"
            sorting.lost[name] = f"keeps all limits and leaks as little as {best} within its interval; {more}"
    return Choice(best, sorting.lost, tuple(name for name in equals if name != best))


def broken(found: Evidence, limits: Limits) -> list[str]:
    """Return the limits that a candidate breaks, or may break within its interval."""
    reasons = [
        *_above("leak", found.leak, limits.leak, "SSIM", 3),
        *_above("loss", found.loss, limits.loss, "points", 1),
    ]
    if limits.bytes is not None and (found.bytes is None or found.bytes > limits.bytes):
        reasons.append(
            f"sends {format_bytes(found.bytes)} a round, the limit is {format_bytes(limits.bytes)}"
        )
    if limits.epsilon is not None and found.epsilon is None:
        reasons.append("promises no ε")
    elif limits.epsilon is not None and found.epsilon is not None and found.epsilon > 1.005 * limits.epsilon:
        reasons.append(f"spends ε {found.epsilon:.3g}, the limit is {limits.epsilon:g}")
    return reasons


def _above(what: str, measure: Measure | None, limit: float, unit: str, digits: int) -> list[str]:
    if measure is None:
        return [f"{what} not measured"]
    if measure.high <= limit:
        return []
    shown = f"{what} {_show(measure, digits)} {unit}, the limit is {limit:g}"
    return [shown if measure.low > limit else f"{shown}: not decided, more seeds or pictures would tell"]


def _leak(found: Evidence) -> Measure:
    if found.leak is None:
        raise ValueError("choose: a candidate that keeps the limit of leaks has a measured leak")
    return found.leak


def _show(measure: Measure, digits: int) -> str:
    return f"{measure.mean:.{digits}f} ± {measure.half:.{digits}f}"
