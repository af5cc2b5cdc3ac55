"""Verdicts as shown to a reader: a sign, a word and a colour, each sufficient by itself."""

from __future__ import annotations

from collections.abc import Mapping

from fl_app.report.data.formats import DASH
from fl_app.report.markup import Html, element
from fl_app.results.study import EQUIVALENT, HOLDS, OPEN, REFUTED, UNKNOWN, Verdict

_SIGNS = {HOLDS: "✓", REFUTED: "✗", EQUIVALENT: "≈", OPEN: "?", UNKNOWN: DASH}
_CLASSES = {HOLDS: "shut", REFUTED: "open"}


def verdict_mark(verdict: Verdict, count: int | None = None) -> Html:
    """Return a verdict, with its count if given."""
    words = verdict if count is None else f"{count} {_many(verdict, count)}"
    return element(
        "span", f"{_SIGNS[verdict]} {words}", class_=f"verdict {_CLASSES.get(verdict, '')}".strip()
    )


def verdict_marks(counts: Mapping[Verdict, int]) -> Html:
    """Return the verdicts with at least one claim."""
    found = [verdict_mark(verdict, count) for verdict, count in counts.items() if count]
    return element("p", found or "no claims", class_="verdicts")


def _many(verdict: Verdict, count: int) -> str:
    return "hold" if verdict == HOLDS and count != 1 else verdict
