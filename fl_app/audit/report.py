"""Result of an audit: what was measured, as values for pages and machines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.api.version import __version__
from fl_app.audit.annex import evidence_of_audit
from fl_app.audit.claims import Claim
from fl_app.audit.exits import ExitReport
from fl_app.audit.findings import Finding
from fl_app.audit.grade import Grade
from fl_app.audit.ladder import Ladder
from fl_app.audit.tags import tags_of_result, tags_of_rule
from fl_app.audit.what_if import Variant
from fl_app.report.annex import statements_json


@dataclass
class AuditReport:
    """All that an audit found out about an app."""

    app: str
    rounds: int
    supernodes: int
    understood: bool
    reason: str
    """Why the app is not understood; "" if it is."""
    tried: list[str]
    error: float | None
    facts: dict[str, Any]
    ladder: Ladder
    claims: list[Claim]
    exits: ExitReport | None
    findings: list[Finding]
    grade: Grade | None
    """None: not graded."""
    traffic: dict[str, Any]
    untested: list[str]
    seconds: float
    picture: np.ndarray | None = None
    """What an exit shows of an honest round."""
    variants: list[Variant] = field(default_factory=list)
    bundle: str = ""
    """SHA-256 of the audited bundle; "" if a folder was audited."""

    def verdict(self) -> str:
        """Return the first sentence of the report."""
        high = sum(finding.severity == "high" for finding in self.findings)
        medium = sum(finding.severity == "medium" for finding in self.findings)
        found = f"{high} high and {medium} medium findings" if high or medium else "no high or medium finding"
        if self.grade is None:
            why = self.reason if self.understood else f"it was not understood: {self.reason}"
            return f"{self.app} gets no grade, because {why}; {found}."
        return f"{self.app} gets the grade {self.grade.letter}: {self.grade.meaning}; {found}."

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values; pictures are left out."""
        return {
            "version": __version__,
            "app": self.app,
            "bundle": self.bundle or None,
            "verdict": self.verdict(),
            "grade": None if self.grade is None else _plain(asdict(self.grade)),
            "statements": statements_json(evidence_of_audit(self)),
            "understood": self.understood,
            "reason": self.reason,
            "tried": self.tried,
            "replay_error": _finite(self.error),
            "facts": _plain(self.facts),
            "results": [
                _plain({k: v for k, v in vars(result).items() if k not in ("images", "truth")})
                | {"tags": list(tags_of_result(result.situation, result.target))}
                for result in self.ladder.results
            ],
            "declined": [asdict(declined) for declined in self.ladder.declined],
            "claims": [_plain(asdict(claim)) for claim in self.claims],
            "exits": None if self.exits is None else _plain(asdict(self.exits)),
            "findings": [
                finding.as_json() | {"tags": list(tags_of_rule(finding.rule))} for finding in self.findings
            ],
            "traffic": _plain(self.traffic),
            "what_if": [_plain(asdict(variant)) for variant in self.variants],
            "untested": self.untested,
            "rounds": self.rounds,
            "supernodes": self.supernodes,
            "seconds": round(self.seconds, 2),
        }

    def write_json(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(self.as_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    return _plain(value.item()) if isinstance(value, np.generic) else str(value)


def _finite(value: float | None) -> float | str | None:
    """Return a number that JSON has; infinity as text."""
    return value if value is None or math.isfinite(value) else str(value)
