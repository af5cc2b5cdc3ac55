"""Findings as SARIF 2.1.0, which code hosts show beside the lines of the app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_app.api.version import __version__
from fl_app.audit.findings import Finding
from fl_app.audit.report import AuditReport
from fl_app.audit.tags import tags_of_rule

_LEVELS = {"high": "error", "medium": "warning", "low": "note"}
_SECURITY = {"high": "8.0", "medium": "5.0", "low": "2.0"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(report: AuditReport) -> dict[str, Any]:
    """Return the findings of a report as one SARIF run."""
    rules = sorted({finding.rule for finding in report.findings})
    worst = {rule: next(f for f in report.findings if f.rule == rule) for rule in rules}
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "fl-app-audit",
                        "version": __version__,
                        "rules": [_rule(rule, worst[rule]) for rule in rules],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "invocations": [{"executionSuccessful": True}],
                "properties": {"verdict": report.verdict(), "bundle": report.bundle or None},
                "results": [_result(finding, rules) for finding in report.findings],
            }
        ],
    }


def write_sarif(report: AuditReport, path: Path) -> None:
    """Write the findings of a report."""
    path.write_text(json.dumps(as_sarif(report), indent=2) + "\n", encoding="utf-8")


def _rule(rule: str, finding: Finding) -> dict[str, Any]:
    name = "".join(word.capitalize() for word in rule.split("-"))
    return {
        "id": rule,
        "name": name,
        "shortDescription": {"text": rule.replace("-", " ")},
        "defaultConfiguration": {"level": _LEVELS[finding.severity]},
        "properties": {"security-severity": _SECURITY[finding.severity], "tags": list(tags_of_rule(rule))},
    }


def _result(finding: Finding, rules: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rules.index(finding.rule),
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.sentence},
        "properties": {"found": finding.found, "computed": finding.computed, "severity": finding.severity},
    }
    path, _, line = finding.file.rpartition(":")
    # every result needs a place for code hosts to show it; without one, the app's own declaration
    region = {"startLine": int(line)} if path else {"startLine": 1}
    artifact = {"uri": path or "pyproject.toml", "uriBaseId": "SRCROOT"}
    result["locations"] = [{"physicalLocation": {"artifactLocation": artifact, "region": region}}]
    return result
