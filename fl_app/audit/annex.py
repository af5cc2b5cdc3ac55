"""Evidence of an audit for the annex and for the three lists of its report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fl_app.api.version import __version__
from fl_app.audit.claims import Claim
from fl_app.audit.grade import RULES
from fl_app.audit.ladder import Result
from fl_app.privacy.member_bound import exact_interval
from fl_app.report.annex import Evidence, Finding, Flow
from fl_app.report.data.formats import format_bytes
from fl_app.report.data.outcome import RECOGNISABLE_FROM

if TYPE_CHECKING:
    from fl_app.audit.report import AuditReport

_ATTACKERS = {
    "as sent": "the server, on an update as this app sends it",
    "one sample": "the server, on the update of a client with one sample",
    "malicious server": "a server that changes the model it sends",
}
_ALL_ROUNDS = "epsilon of all rounds"
_SENSITIVITY = ("sensitivity-is-not-the-clipping-norm", "update-sent-before-clipping", "clipping-mod-missing")


def evidence_of_audit(report: AuditReport) -> Evidence:
    """Return what an audit measured, what the app declares, and what follows."""
    kinds = {result.target for result in report.ladder.results} - {"labels"}
    size = report.traffic.get("reply bytes")
    sent = format_bytes(size if isinstance(size, int) else None)
    what = f"replies to {', '.join(report.traffic.get('messages', {})) or 'orders'}"
    parameters = report.facts.get("parameters")
    return Evidence(
        title=f"Federated training by the Flower app {report.app}",
        categories=", ".join(sorted(kinds)) or "not understood",
        parties=f"{report.supernodes} clients and one server, as audited",
        model=str(report.facts.get("model") or "unknown")
        + (f", {parameters} parameters" if parameters else ""),
        flows=[
            Flow("each client", "the server", f"{what}, {report.rounds} audited rounds", f"{sent} in all"),
            Flow("the server", "every client that takes part", "the model, once a round", "not counted"),
            Flow("the server", "holders of the final model", "the trained model", "once"),
        ],
        findings=[*map(_figure, report.ladder.results), *_exits(report)],
        declared=list(_declared(report.claims)),
        measures=[
            (f"{claim.mechanism} in {claim.file or 'the app'}", _values(claim.declared))
            for claim in report.claims
        ],
        follows=list(_follows(report)),
        failures=len(report.traffic.get("errors", [])),
        source=_source(report),
        checks=list(_checks(report)),
    )


def _source(report: AuditReport) -> str:
    what = f"bundle with SHA-256 {report.bundle}" if report.bundle else "a folder, bound to no bundle"
    return f"fl-app-audit of {what}, fl-app {__version__}"


def _figure(result: Result) -> Finding:
    judged = result.target in ("pictures", "rows")
    score = "nothing came out" if result.score is None else f"{result.measure} {result.score:.2f}"
    return Finding(
        "reconstruction",
        f"{result.target}: {score}",
        f"{_ATTACKERS.get(result.situation, result.situation)}, with {result.attack}"
        + (", knows the defense" if result.adaptive else ""),
        result.granted,
        _interval(result),
        (result.score or 0.0) >= RECOGNISABLE_FROM if judged else None,
        f"{result.measure} of at least {RECOGNISABLE_FROM:g}; the threshold is ours" if judged else "",
    )


def _interval(result: Result) -> str:
    """Return the exact interval of the share that was read; one update alone has none."""
    count = result.details.get("samples")
    read = result.details.get("recognised")
    if not (isinstance(count, int) and isinstance(read, int) and count):
        return "one update: no interval"
    low, high = exact_interval(read, count)
    return f"{read} of {count} recognised: {low:.0%} to {high:.0%} of such samples (95 %)"


def _exits(report: AuditReport) -> Iterator[Finding]:
    for found in [] if report.exits is None else report.exits.exits:
        if found.bits:
            yield Finding(
                "reconstruction",
                f"{found.bits} planted bits were read off {found.name}",
                "anybody who sees the client's reply",
                "nothing of the data",
                f"read in all of {report.exits.runs if report.exits else 0} repetitions",
                True,
                "any bit that is told in every repetition",
            )


def _declared(claims: list[Claim]) -> Iterator[tuple[str, str]]:
    for claim in claims:
        for name, value in claim.declared.items():
            yield f"{claim.mechanism}: {name}", _text(value)


def _follows(report: AuditReport) -> Iterator[tuple[str, str]]:
    for claim in report.claims:
        for name, value in claim.computed.items():
            yield (
                f"{claim.mechanism}: {name}, from settings and the rounds that were seen",
                _text(value),
            )
    if report.grade is not None:
        yield "grade", f"{report.grade.letter}: {RULES[report.grade.letter]}; the rules are ours"
    for finding in report.findings:
        if finding.found and finding.computed:
            yield finding.rule, f"found {finding.found}, expected {finding.computed}"


def _checks(report: AuditReport) -> Iterator[tuple[str, str]]:
    rules = {finding.rule for finding in report.findings}
    private = [claim for claim in report.claims if _ALL_ROUNDS in claim.computed]
    if report.exits is not None:
        leaks = [found.name for found in report.exits.exits if found.bits]
        yield (
            "side channels",
            f"bits were read off {', '.join(leaks)}" if leaks else "no planted bit was read",
        )
    if not private:
        return
    largest = max(float(claim.computed[_ALL_ROUNDS]) for claim in private)
    yield "privacy parameters", f"ε = {largest:.4g} over all rounds"
    yield "sensitivity", next((rule for rule in _SENSITIVITY if rule in rules), "no contradiction was found")
    yield (
        "composition",
        "rounds are missing in the declared ε"
        if "epsilon-not-composed" in rules
        else "all rounds counted here",
    )
    if "secure-noise-is-off" in rules:
        yield "randomness", "the noise comes from a generator that is not made for secrets"


def _values(values: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
