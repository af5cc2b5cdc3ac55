"""Grade of an app, from A to E, with the evidence that decided it."""

from __future__ import annotations

from dataclasses import dataclass

from fl_app.audit.findings import Finding
from fl_app.audit.ladder import Result
from fl_app.report.data.outcome import DEGRADED_FROM, RECOGNISABLE_FROM

RULES = {
    "E": "the server reads samples off an ordinary update, or more than a few bits off another exit",
    "D": "a malicious server reads samples, or a privacy claim is false",
    "C": "samples are read off the update of a single sample, or all labels or tokens off an ordinary one",
    "B": "labels or tokens are read in part, or a claim or exit is doubtful",
    "A": "nothing was read by the attacks of this audit",
}


_SAME = 0.01


@dataclass(frozen=True)
class Grade:
    """Letter and its evidence."""

    letter: str
    evidence: tuple[str, ...]

    @property
    def meaning(self) -> str:
        """The rule behind the letter."""
        return RULES[self.letter]


def grade_of(results: list[Result], findings: list[Finding]) -> Grade:
    """Return the worst grade that any evidence gives."""
    evidence: dict[str, list[str]] = {letter: [] for letter in RULES}
    for result in results:
        letter = _of_result(result)
        if letter != "A":
            evidence[letter].append(
                f"{result.attack} ({result.situation}) reads {result.target}: "
                f"{result.measure} {result.score:.2f}"
            )
    for finding in findings:
        letter = _of_finding(finding)
        if letter != "A":
            evidence[letter].append(finding.sentence)
    letter = next(letter for letter in RULES if evidence[letter] or letter == "A")
    return Grade(letter, tuple(evidence[letter]))


def _of_result(result: Result) -> str:
    score = result.score or 0.0
    if result.target in ("labels", "tokens"):
        if score <= result.details.get("guess", 0.0) + _SAME:
            return "A"  # naming all classes would have been as good
        if result.situation == "as sent":
            return "C" if score >= 0.99 else "B" if score >= DEGRADED_FROM else "A"
        return "A"
    if score < RECOGNISABLE_FROM:
        return "A"
    return {"as sent": "E", "malicious server": "D"}.get(result.situation, "C")


def _of_finding(finding: Finding) -> str:
    if finding.severity == "low":
        return "A"
    if finding.severity == "medium":
        return "B"
    return "E" if finding.rule.endswith("exit") else "D"
