"""First sentence of a run's page: leak, price in accuracy, bytes."""

from __future__ import annotations

from fl_app.report.data.formats import format_count, format_factor, format_number
from fl_app.report.data.intervals import half_width_of_difference
from fl_app.report.data.outcome import THRESHOLDS, Outcome, count_recognised, outcome_of
from fl_app.report.data.runs import load_baseline
from fl_app.report.data.scores import SSIM, worst_score
from fl_app.report.data.update_kinds import as_sent, of_update
from fl_app.report.markup import Html, element
from fl_app.results import Run


def verdict(run: Run) -> Html:
    """Return the sentence that answers the question of the page, marked with the outcome."""
    outcome = outcome_of(as_sent(run))
    return element(
        "p",
        element("span", f"{outcome.icon} {outcome.value}", class_=f"verdict {outcome.look}"),
        " ",
        verdict_sentence(run),
        class_="lead",
        title=THRESHOLDS,
        data_fact="verdict",
        data_value=outcome.value,
    )


def verdict_sentence(run: Run) -> str:
    """Return what leaks, what the defense costs in accuracy, and what it saves in bytes, in one sentence."""
    parts = [
        _leak(run),
        *([price] if (price := _price(run)) else []),
        *([sent] if (sent := _bytes(run)) else []),
    ]
    if _attack_failed_anyway(run):
        parts.insert(1, "it does not recognise the raw update either, so this says nothing for the defense")
    return "; ".join(parts) + "."


def _attack_failed_anyway(run: Run) -> bool:
    """Return whether the attack is too weak to tell: it fails with and without the defense."""
    raw, sent = outcome_of(of_update(run, "undefended")), outcome_of(as_sent(run))
    return raw is sent is Outcome.HIDDEN


def _leak(run: Run) -> str:
    attacks = as_sent(run)
    outcome = outcome_of(attacks)
    if outcome is Outcome.UNKNOWN:
        return "What this run leaks was not measured"
    adaptive = any(attack.adaptive for attack in attacks) and run.defense != "none"
    who = f"An attacker who knows {run.defense}" if adaptive else "The attacker"
    recognised, count = count_recognised(attacks)
    if count:
        best = f"best SSIM {SSIM.show(worst_score(SSIM, attacks))}"
        noun = "picture" if count == 1 else "pictures"
        still = "still recognises" if recognised and run.defense != "none" else "recognises"
        return f"{who} {still} {recognised} of {count} attacked {noun} ({best})"
    result = {
        Outcome.RECOGNISABLE: "reads most of what it looked for",
        Outcome.DEGRADED: "reads a part of what it looked for",
        Outcome.HIDDEN: "reads little of what it looked for",
    }[outcome]
    return f"{who} {result}"


def _price(run: Run) -> str | None:
    baseline = load_baseline(run)
    if run.defense == "none" or baseline is None:
        return None
    with_it, without = run.totals.accuracy, baseline.totals.accuracy
    if with_it is None or without is None:
        return None
    points, count = 100 * (without - with_it), run.test_samples
    if not count or not (0 <= with_it <= 1 and 0 <= without <= 1):
        change = f"costs {format_number(points, 1)}" if points >= 0 else f"gains {format_number(-points, 1)}"
        return f"the defense {change} points of accuracy in this one seed"
    half = 100 * half_width_of_difference(with_it, without, count)
    within = ", which is no measurable difference" if abs(points) <= half else ""
    return (
        f"the defense costs {format_number(points, 1)} ± {format_number(half, 1)} points of accuracy "
        f"(95 % over {format_count(count)} test samples, one seed){within}"
    )


def _bytes(run: Run) -> str | None:
    up, down, dense = run.totals.uplink_bytes, run.totals.downlink_bytes, run.totals.dense_bytes
    if not up or not down or not dense:
        return None
    sent = up + down
    if dense >= sent:
        return f"it sends {format_factor(dense, sent)} fewer bytes than a dense exchange"
    return f"it sends {format_factor(sent, dense)} more bytes than a dense exchange"
