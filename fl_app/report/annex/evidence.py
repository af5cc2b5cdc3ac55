"""Evidence of an annex as plain values: from a run's result, or from an audit of any app."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fl_app.privacy.member_bound import member_bound
from fl_app.report.data.formats import format_bytes, format_number, format_percent
from fl_app.report.data.outcome import outcome_of
from fl_app.report.data.scores import SSIM, worst_score
from fl_app.report.data.update_kinds import as_sent, of_update
from fl_app.report.pages.identification import identified
from fl_app.results import Run

_FALSE_ALARMS = 0.1


@dataclass(frozen=True)
class Flow:
    """Data that somebody sends to somebody."""

    sender: str
    recipient: str
    what: str
    volume: str


@dataclass(frozen=True)
class Finding:
    """One measured figure on a threat: by whom, knowing what, and how sure it is."""

    threat: str
    """`reconstruction`, `membership` or `property`."""
    figure: str
    attacker: str
    granted: str
    interval: str = ""
    succeeded: bool | None = None
    """Whether the attack succeeded by the stated threshold; None: not decided."""
    threshold: str = ""


@dataclass(frozen=True)
class Evidence:
    """Everything that a tool knows of a processing."""

    title: str
    categories: str
    """Kind of data, as the tool sees it."""
    parties: str
    model: str
    flows: Sequence[Flow] = ()
    findings: Sequence[Finding] = ()
    declared: Sequence[tuple[str, str]] = ()
    """Statements of somebody that were not measured: what, and as declared."""
    follows: Sequence[tuple[str, str]] = ()
    """Consequences of what was measured and declared together."""
    measures: Sequence[tuple[str, str]] = ()
    """Protections that were at work, with their settings."""
    failures: int = 0
    """Answers of clients that did not count."""
    source: str = ""
    """File that this was read from, and the version of the tool."""
    checks: Sequence[tuple[str, str]] = field(default_factory=tuple)
    """Answers on the hazards of NIST SP 800-226, by hazard, where the source can tell."""


def evidence_of(run: Run) -> Evidence:
    """Return what a run's result says."""
    clients, rounds = run.setting("clients") or "?", len(run.rounds)
    up, down = run.totals.uplink_bytes, run.totals.downlink_bytes
    each = max(1, sum(row.clients or 0 for row in run.rounds))
    flows = [
        Flow(
            "each client",
            "the server",
            f"{_sent(run)}, {rounds} rounds",
            f"{format_bytes(up)} in all, {format_bytes(None if up is None else up / each)} an answer",
        ),
        Flow("the server", "every client that takes part", f"the model, {rounds} rounds", format_bytes(down)),
        Flow("the server", "holders of the final model", "the trained model", "once"),
    ]
    return Evidence(
        title=f"Federated training of {run.choice('model') or 'a model'} on {run.choice('data') or 'data'}",
        categories=f"data set {run.choice('data') or 'unknown'}, as configured",
        parties=f"{clients} clients and one server",
        model=f"{run.choice('model') or 'unknown'}, {run.model.parameters or '?'} parameters",
        flows=flows,
        findings=[*_reconstruction(run), *_membership(run), *_property(run)],
        declared=_declared(run),
        follows=_follows(run),
        measures=_measures(run),
        failures=sum(len(row.failures) for row in run.rounds),
        source=f"result.json of a run, config {run.config_hash or 'unknown'}, "
        f"fl-app {run.versions.get('fl-app', 'unknown')}",
        checks=_checks(run),
    )


def _sent(run: Run) -> str:
    return (
        "vectors under masks, of which the sum is seen" if run.choice("secagg") == "on" else "model updates"
    )


def _reconstruction(run: Run) -> list[Finding]:
    found = []
    for title, attacks in (("as sent", as_sent(run)), ("before the defense", of_update(run, "undefended"))):
        if not attacks:
            continue
        names = ", ".join(sorted({attack.name for attack in attacks}))
        best = worst_score(SSIM, attacks)
        outcome = outcome_of(attacks)
        granted = ", ".join(
            sorted(
                {key for one in attacks for key, value in one.granted.items() if value not in (None, False)}
            )
        )
        found.append(
            Finding(
                "reconstruction",
                f"updates {title}: {outcome.value}"
                + ("" if best is None else f", best SSIM {format_number(best, 2)}"),
                f"the server, with {names}",
                granted or "the model and the update",
                f"{len(attacks)} attacks",
                {"recognisable": True, "not recognisable": False}.get(outcome.value),
                "SSIM of at least 0.5, or PSNR of at least 25 dB; the threshold is ours",
            )
        )
    right, asked = identified(run)
    if asked:
        found.append(
            Finding(
                "reconstruction",
                f"{right} of {asked} rebuilt samples point to the right one among the candidates",
                "the server",
                "candidates that include the right one",
                succeeded=right > max(1, asked // 20) or right == asked == 1,
                threshold="more than one in twenty; the threshold is ours",
            )
        )
    return found


def _membership(run: Run) -> list[Finding]:
    found = []
    for row in run.membership or []:
        if row.best_auc is None:
            continue
        points = row.statistics[row.best].points if row.best in row.statistics else []
        at = next((point for point in points if point.tpr is not None), None)
        rate = (
            ""
            if at is None
            else f", {format_percent(at.tpr)} of members found at {format_percent(at.fpr)} false alarms"
        )
        found.append(
            Finding(
                "membership",
                f"AUC {format_number(row.best_auc, 3)}{rate}",
                f"{row.viewpoint}, by {row.best}{', active' if row.active else ''}"
                + (", knows the defense" if row.adaptive else ""),
                "candidates with labels; half of them members",
                f"AUC {format_number(row.best_auc_low, 3)} to {format_number(row.best_auc_high, 3)} (95 %), "
                f"{row.reporting_members} members and {row.reporting_strangers} strangers",
                row.tells_members,
                "an interval above a guess (0.5)",
            )
        )
    return found


def _property(run: Run) -> list[Finding]:
    return [
        Finding(
            "property",
            f"{row.holds} of {row.trait}: {format_percent(row.rate)} right, "
            f"baseline {format_percent(row.baseline)}",
            "the server" + (", knows the defense" if row.adaptive else ""),
            "public samples",
            f"{format_percent(row.rate_low)} to {format_percent(row.rate_high)} (95 %), {row.asked} updates",
            row.tells,
            "an interval above the baseline",
        )
        for row in run.properties or []
        if row.rate is not None
    ]


def _declared(run: Run) -> list[tuple[str, str]]:
    found = []
    unit = run.totals.epsilon_unit or "record"
    if run.totals.epsilon is not None:
        found.append(
            (f"ε for each {unit}, against observers of models", format_number(run.totals.epsilon, 2))
        )
    if run.totals.epsilon_server is not None:
        found.append((f"ε for each {unit}, against the server", format_number(run.totals.epsilon_server, 2)))
    if run.secure_aggregation is not None:
        found.append(("secure aggregation withstands", run.secure_aggregation.against or "not said"))
    return found


def _follows(run: Run) -> list[tuple[str, str]]:
    found = []
    for row in run.membership or []:
        if row.promise is None:
            continue
        share = member_bound(_FALSE_ALARMS, *row.promise)
        who = f"to {row.viewpoint}" + (", who knows the defense" if row.adaptive else "")
        found.append(
            (
                f"members that any test finds at {_FALSE_ALARMS:.0%} false alarms, if ε holds ({who})",
                f"at most {format_percent(share)}",
            )
        )
        found.append(
            (
                f"measured points on membership ({who})",
                "above what the declared ε allows: it does not hold"
                if row.exceeds_bound
                else "none lies above what the declared ε allows, which does not prove it",
            )
        )
    if run.secure_aggregation is not None:
        found.append(
            (
                "figures on single updates",
                "hold only where secure aggregation fails to do what it declares",
            )
        )
    return found


def _measures(run: Run) -> list[tuple[str, str]]:
    found = [] if run.defense == "none" else [("defense of updates", run.defense)]
    if run.privacy is not None:
        found.append(
            (
                "noise of client-level differential privacy",
                f"multiplier {format_number(run.privacy.noise_multiplier, 2)}, "
                f"clip {format_number(run.privacy.clip, 2)}",
            )
        )
    return found


def _checks(run: Run) -> list[tuple[str, str]]:
    if run.totals.epsilon is None:
        return []
    replayable = None if run.privacy is None else run.privacy.replayable
    noise = {True: "no: the seed gives the noise away", False: "yes: it comes from the operating system"}
    exceeded = [row for row in run.membership or [] if row.exceeds_bound]
    bound = "exceeded" if exceeded else "kept" if run.membership else "not measured"
    return [
        ("unit of privacy", f"one {run.totals.epsilon_unit or 'record'}"),
        ("privacy parameters", f"ε = {format_number(run.totals.epsilon, 2)} over all rounds"),
        ("randomness", noise.get(replayable, "not said") if replayable is not None else "not said"),
        ("measured bound on membership", bound),
    ]
