"""Terminal summary of a run in a few lines."""

from __future__ import annotations

from pathlib import Path

from fl_app.report.data.formats import format_best, format_bytes, format_factor, format_number, format_percent
from fl_app.report.data.runs import load_baseline
from fl_app.report.data.scores import PSNR, SSIM, closest_image, worst_score
from fl_app.report.data.update_kinds import MASKED, as_sent, of_update, update_words
from fl_app.report.pages.label_section import label_means
from fl_app.report.pages.verdict import verdict_sentence
from fl_app.results import Attack, Run, load_run


def summary_lines(run_dir: Path) -> list[str]:
    """Return what leaked, how good the model got, and what travelled."""
    run = load_run(run_dir)
    return [
        *_leak("before the defense", of_update(run, "undefended")),
        *_leak(_sent_words(run), as_sent(run)),
        *_leak(f"of {MASKED}, which is noise", of_update(run, "masked")),
        f"accuracy: {format_percent(run.totals.accuracy)} after {len(run.rounds)} "
        f"{'round' if len(run.rounds) == 1 else 'rounds'}"
        f"; best {format_best(run.totals.best_accuracy, run.totals.best_chosen_by)}{_against(run)}",
        *_two_classes(run),
        *([] if run.totals.wer is None else [f"word error rate: {format_percent(run.totals.wer)}"]),
        _bytes(run),
        *_epsilon(run),
        verdict_sentence(run),
    ]


def _sent_words(run: Run) -> str:
    words, sums = f"as sent ({run.defense})", of_update(run, "sum")
    if not sums:
        return words
    found = closest_image(sums)
    return f"{words}, {update_words(run, found[0] if found else sums[0])}"


def _form(attack: Attack) -> str:
    return f"{attack.name} {'adaptive' if attack.adaptive else 'plain'}"


def _leak(words: str, attacks: list[Attack]) -> list[str]:
    if not attacks:
        return []
    by_form: dict[str, list[Attack]] = {}
    for attack in attacks:
        by_form.setdefault(_form(attack), []).append(attack)
    return [_line(words, form, tries) for form, tries in sorted(by_form.items())]


def _line(words: str, form: str, attacks: list[Attack]) -> str:
    """Return what one form of one attack found at best."""
    if any(attack.sentence for attack in attacks):
        shares = [share for a in attacks if (share := a.others.get("token_accuracy")) is not None]
        shown = f"{format_percent(max(shares, default=None))} of the tokens right"
        return f"sentence {words}: {shown} ({form}, the attacker's best)"
    if any(attack.texts for attack in attacks):
        rates = [rate for attack in attacks if (rate := attack.others.get("token_wer")) is not None]
        shown = f"word errors {format_percent(min(rates, default=None))}"
        return f"transcript {words}: {shown} ({form}, the attacker's best)"
    if any(attack.label_scores for attack in attacks) and worst_score(PSNR, attacks) is None:
        shown = ", ".join(f"{name} {format_number(value, 2)}" for name, value in label_means(attacks).items())
        return f"labels {words}: {shown} ({form}, mean over {len(attacks)} updates)"
    scores = ", ".join(f"{m.title} {m.show(worst_score(m, attacks))}" for m in (PSNR, SSIM))
    return f"leak {words}: {scores} ({form}, the attacker's best image)"


def _epsilon(run: Run) -> list[str]:
    totals = run.totals
    if totals.epsilon is None:
        return []
    per = f" per {totals.epsilon_unit}" if totals.epsilon_unit else ""
    compared = f" ({totals.epsilon_adjacency})" if totals.epsilon_adjacency else ""
    server = (
        ""
        if totals.epsilon_server is None
        else f"; against the server {format_number(totals.epsilon_server, 2)}"
    )
    if totals.epsilon_unit == "client" and totals.epsilon_server is not None:
        server += " (add or remove one client)"
    lines = [f"ε{per}: {format_number(totals.epsilon, 2)}{compared}{server}"]
    if totals.epsilon_record is not None and run.privacy is not None and run.privacy.records is not None:
        of_record = f"ε per record: {format_number(totals.epsilon_record, 2)}"
        lines.append(f"{of_record} ({run.privacy.records.adjacency}), against the server, too")
    return lines


def _two_classes(run: Run) -> list[str]:
    if not run.two_classes:
        return []
    totals = run.totals
    shown = f"{format_percent(totals.balanced_accuracy)}; AUROC {format_number(totals.auroc, 3)}"
    return [f"balanced accuracy: {shown}"]


def _against(run: Run) -> str:
    baseline = load_baseline(run)
    return "" if baseline is None else f"; without the defense {format_percent(baseline.totals.accuracy)}"


def _bytes(run: Run) -> str:
    up, down, dense = run.totals.uplink_bytes, run.totals.downlink_bytes, run.totals.dense_bytes
    sent = None if up is None or down is None else up + down
    return (
        f"bytes: {format_bytes(up)} up, {format_bytes(down)} down; dense ÷ sent {format_factor(dense, sent)}"
    )
