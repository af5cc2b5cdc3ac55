"""Three lists of a report: what was measured, what somebody declared, and what follows from both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fl_app.report.annex.evidence import Evidence, Finding
from fl_app.report.markup import Child, element, table


def statements_section(evidence: Evidence) -> list[Child]:
    """Return the three lists as a section of a page."""
    measured = [
        (one.figure, one.attacker, one.granted, one.interval or "none", _judged(one))
        for one in evidence.findings
    ]
    return [
        element("h2", "Measured, declared, and what follows"),
        element("h3", "Measured"),
        _table(
            ("Figure", "Attacker", "Granted", "Interval", "Success"),
            measured,
            "measured",
            "nothing was measured",
        ),
        element("h3", "Declared by somebody, not measured"),
        _table(("Statement", "As declared"), evidence.declared, "declared", "nothing"),
        element("h3", "Follows from both"),
        _table(("Statement", "Value"), evidence.follows, "follows", "nothing"),
    ]


def statements_json(evidence: Evidence) -> dict[str, list[dict[str, Any]]]:
    """Return the three lists as plain values."""
    return {
        "measured": [
            {
                "threat": one.threat,
                "figure": one.figure,
                "attacker": one.attacker,
                "granted": one.granted,
                "interval": one.interval or None,
                "succeeded": one.succeeded,
                "threshold": one.threshold or None,
            }
            for one in evidence.findings
        ],
        "declared": [{"what": what, "value": value} for what, value in evidence.declared],
        "follows": [{"what": what, "value": value} for what, value in evidence.follows],
    }


def _judged(one: Finding) -> str:
    said = {True: "yes", False: "no", None: "not decided"}[one.succeeded]
    return f"{said}, by {one.threshold}" if one.threshold else said


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], fact: str, empty: str) -> Child:
    body = table(header, rows, words=len(header)) if rows else element("p", empty)
    return element("div", body, data_fact=fact, data_value=str(len(rows)))
