"""Findings of an audit, from high to low."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("high", "medium", "low")


@dataclass(frozen=True)
class Finding:
    """One claim or exit that is not as it should be."""

    rule: str
    """Name of the rule, which stays the same over versions."""
    severity: str
    sentence: str
    file: str = ""
    """``path:line`` in the app; "" if no line of the app states it."""
    found: str = ""
    computed: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"Finding: severity must be one of {SEVERITIES}, got {self.severity!r}")

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)


def sorted_findings(findings: list[Finding]) -> list[Finding]:
    """Return each finding once, the worst first."""
    unique = {(f.rule, f.file, f.found, f.computed): f for f in findings}
    return sorted(unique.values(), key=lambda finding: (SEVERITIES.index(finding.severity), finding.rule))


def at_least(findings: list[Finding], severity: str) -> list[Finding]:
    """Return the findings of a severity or a worse one."""
    most = SEVERITIES.index(severity)
    return [finding for finding in findings if SEVERITIES.index(finding.severity) <= most]
