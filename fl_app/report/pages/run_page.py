"""Page of one run: `report.html` beside its `result.json`, with its pictures as files."""

from __future__ import annotations

import json
import math
from pathlib import Path

from fl_app.console.words import printable
from fl_app.report.annex import evidence_of, statements_section
from fl_app.report.charts.live_chart import live_chart
from fl_app.report.charts.plots import Curve, plot_accuracy, plot_bytes
from fl_app.report.charts.tiles import png_uri
from fl_app.report.data.formats import (
    DASH,
    format_bytes,
    format_count,
    format_number,
    format_percent,
    format_seconds,
    format_short,
)
from fl_app.report.data.gallery import GalleryRow, gallery_rows, plot_gallery
from fl_app.report.data.intervals import half_width
from fl_app.report.data.runs import load_baseline
from fl_app.report.data.thinning import MOST_ROWS, thinned
from fl_app.report.markup import Child, Html, details, element, page, table
from fl_app.report.pages.answers import four_answers
from fl_app.report.pages.attack_section import attack_section
from fl_app.report.pages.bound_section import bound_section
from fl_app.report.pages.epsilon_panel import epsilon_panel
from fl_app.report.pages.gallery_grid import gallery_grids
from fl_app.report.pages.identification import identification
from fl_app.report.pages.label_section import label_section
from fl_app.report.pages.membership_section import membership_section
from fl_app.report.pages.metric_notes import metric_notes
from fl_app.report.pages.panels import panel
from fl_app.report.pages.property_section import property_section
from fl_app.report.pages.protection_section import protection_section
from fl_app.report.pages.sentence_section import sentence_section
from fl_app.report.pages.server_section import server_section
from fl_app.report.pages.trace_section import trace_section
from fl_app.report.pages.transcript_section import transcript_section
from fl_app.report.pages.verdict import verdict
from fl_app.results import Run, load_run

_NOTES_SHOWN = 12


def write_report(run_dir: Path | str) -> Path:
    """Write `report.html`, `accuracy.png`, `bytes.png` and `gallery.png` into a run folder."""
    run = load_run(run_dir)
    rows = gallery_rows(run)
    if rows:
        plot_gallery(rows, run.folder / "gallery.png")
    body: list[Child] = [
        _head(run),
        _banner(run),
        identification(run),
        verdict(run),
        four_answers(run),
        _gallery_section(run, rows),
        membership_section(run),
        property_section(run),
        server_section(run),
        protection_section(run),
        *statements_section(evidence_of(run)),
        attack_section(run),
        bound_section(run),
        label_section(run),
        transcript_section(run),
        sentence_section(run),
        trace_section(run),
        _chart_section(run),
        _failure_section(run),
        _notes_section(run),
        _detail_section(run),
    ]
    path = run.folder / "report.html"
    path.write_text(page(f"{_title(run)}: what this run leaked", body), encoding="utf-8")
    return path


def _title(run: Run) -> str:
    place = [text for text in (run.choice("model"), run.choice("data")) if text]
    defense = "No defense" if run.defense == "none" else f"{run.defense} defense"
    return defense + (f", {' on '.join(place)}" if place else "")


def _head(run: Run) -> list[Child]:
    def counted(value: str | None, noun: str) -> str | None:
        return value and f"{value} {noun}"

    per = f" per {run.totals.epsilon_unit}" if run.totals.epsilon_unit else ""
    facts = [
        counted(run.setting("clients"), "clients"),
        counted(str(len(run.rounds)), "of " + (run.setting("rounds") or DASH) + " rounds"),
        run.choice("strategy"),
        counted(run.choice("partition"), "partition"),
        counted(run.choice("engine"), "engine"),
        run.setting("seed") and f"seed {run.setting('seed')}",
        None if run.model.parameters is None else f"{format_count(run.model.parameters)} parameters",
        None if run.totals.epsilon is None else f"ε{per} = {format_number(run.totals.epsilon, 2)}",
        None
        if run.totals.epsilon_server is None
        else f"ε against the server = {format_number(run.totals.epsilon_server, 2)}",
        None
        if run.totals.epsilon_record is None
        else f"ε per record = {format_number(run.totals.epsilon_record, 2)}",
        None if run.totals.seconds is None else format_seconds(run.totals.seconds),
    ]
    return [
        element("p", "Report of one federated run", class_="eyebrow"),
        element("h1", _title(run)),
        element("ul", [element("li", fact) for fact in facts if fact], class_="chips"),
    ]


def _banner(run: Run) -> Html | None:
    if run.status == "finished":
        return None
    done = (
        f"It has {len(run.rounds)} of {run.setting('rounds') or DASH} rounds; all numbers below are of those."
    )
    said = {
        "interrupted": "This run was interrupted.",
        "failed": "This run failed.",
    }.get(run.status or "", f"The status of this run is {run.status or 'not known'}.")
    return element(
        "div",
        element("p", element("strong", said), " ", done),
        element("pre", run.error) if run.error else None,
        class_=f"banner {'failed' if run.status == 'failed' else ''}".strip(),
        role="alert",
    )


def _gallery_section(run: Run, rows: list[GalleryRow]) -> list[Child]:
    if not rows:
        return []
    grids, shown = gallery_grids(rows)
    left = len(rows) - shown
    sums_first = (
        "First come the sums, which are all that the server sees; then one client's own update, before the "
        "defense and under its masks."
    )
    return [
        element("h2", "What the attacker saw"),
        element("p", sums_first, data_fact="sums-first") if rows[0].of_sum else None,
        element(
            "p",
            "Batches that leaked most come first. A frame marks the picture that came closest to its "
            "original, for each kind of update. Higher PSNR and SSIM mean closer.",
        ),
        element("p", f"{left} more rows are in the attacks folder of this run.", data_fact="gallery-rest")
        if left
        else None,
        element("div", grids, class_="stack"),
        metric_notes(),
    ]


def _chart_section(run: Run) -> list[Child]:
    drawn = (_accuracy_panel(run), epsilon_panel(run), _bytes_panel(run), _residual_panel(run))
    panels = [panel for panel in drawn if panel]
    partition = run.folder / "partition.png"
    if partition.is_file():
        picture = element(
            "img",
            class_="chart paper",
            src=png_uri(partition.read_bytes()),
            alt="samples of each class by client",
        )
        panels.append(panel("Who holds what: the partition", picture))
    return [element("h2", "How training went"), element("div", panels, class_="charts")] if panels else []


def _accuracy_panel(run: Run) -> Html | None:
    curve = Curve.of("accuracy", ((r.round, r.accuracy) for r in run.rounds))
    if not curve.x:
        return None
    baseline = load_baseline(run)
    without = Curve.of("", ((r.round, r.accuracy) for r in baseline.rounds) if baseline else ())
    own = Curve.of("on clients", ((r.round, r.client_accuracy) for r in run.rounds))
    curves = [_with_interval(curve._replace(label=f"with {run.defense}") if without.x else curve, run)]
    curves += [_with_interval(without._replace(label="without"), run)] if without.x else []
    curves += [own] if own.x else []
    (run.folder / "accuracy.png").write_bytes(plot_accuracy(curves))
    alt = f"accuracy over rounds, from {format_percent(curve.y[0])} to {format_percent(curve.y[-1])}"
    picture = live_chart(curves, alt=alt, x_label="round", show=format_percent)
    words = f"Bands are 95 % intervals from {run.test_samples} test samples; seeds vary more."
    return panel(
        "Accuracy", picture, element("p", words, class_="muted") if curves[0].spread is not None else None
    )


def _with_interval(curve: Curve, run: Run) -> Curve:
    """Return the curve with the band that the number of test samples gives it."""
    count = run.test_samples
    if not count or not all(0 <= y <= 1 for y in curve.y):
        return curve
    return curve._replace(spread=[half_width(y, count) for y in curve.y])


def _bytes_panel(run: Run) -> Html | None:
    up = Curve.of("up", ((r.round, r.uplink_bytes) for r in run.rounds))
    down = Curve.of("down", ((r.round, r.downlink_bytes) for r in run.rounds))
    if not up.x and not down.x:
        return None
    dense = run.totals.dense_bytes
    each_way = dense / 2 / len(run.rounds) if dense and math.isfinite(dense) else None
    (run.folder / "bytes.png").write_bytes(plot_bytes(up, down, each_way))
    picture = live_chart(
        [curve for curve in (up, down) if curve.x],
        alt=f"bytes per round; a dense exchange takes {format_bytes(each_way)} each way",
        x_label="round",
        show=format_bytes,
        level=("dense, each way", each_way) if each_way else None,
        may_be_log=True,
    )
    return panel("Bytes on the wire", picture, _bound_words(run))


def _bound_words(run: Run) -> Html | None:
    """Compare the size of messages with the bound of a simple model of their entries."""
    measured = [r for r in run.rounds if r.uplink_to_bound is not None and r.downlink_to_bound is not None]
    if not measured:
        return None
    last = measured[-1]
    up, down = (format_number(ratio, 3) for ratio in (last.uplink_to_bound, last.downlink_to_bound))
    return element(
        "p",
        f"In round {last.round} an update took {up} times its entropy bound, a download {down} times. The "
        "bound is that of a simple model of each tensor: log₂ C(n, k) bits for positions, as if all were "
        "equally likely; for a value the empirical entropy of its exponent, with sign and mantissa in full, "
        "or the entropy of the values themselves where few are distinct. Data with more order than that, "
        "such as mantissas that end in zeros, can take less than 1 times the bound.",
        data_fact="entropy-bound",
    )


def _residual_panel(run: Run) -> Html | None:
    curve = Curve.of("residual", ((r.round, r.residual_norm) for r in run.rounds))
    if not curve.x:
        return None
    picture = live_chart([curve], alt="residual norm over rounds", x_label="round", show=format_short)
    return panel("Held back by error feedback", picture)


def _failure_section(run: Run) -> list[Child]:
    failures = [(r.round, failure) for r in run.rounds for failure in r.failures]
    if not failures:
        return []
    rows = [
        [str(n), DASH if f.client is None else str(f.client), f.reason or DASH]
        for n, f in thinned(failures, MOST_ROWS)
    ]
    body = table(["round", "client", "reason"], rows, words=3)
    few = len(failures) <= 12
    return [
        element("h2", f"Failures ({len(failures)})"),
        element("p", "These replies did not count; the round went on without them."),
        body if few else details(_of_all("failures", len(failures)), body),
    ]


def _notes_section(run: Run) -> list[Child]:
    of_rounds = [f"round {r.round}: {note}" for r in run.rounds for note in r.notes]
    if not run.notes and not of_rounds:
        return []
    few = [*thinned(run.notes, MOST_ROWS), *of_rounds[:_NOTES_SHOWN]]
    left = of_rounds[_NOTES_SHOWN:]
    return [
        element("h2", "Notes"),
        element("ul", [element("li", note) for note in few]),
        details(
            f"{len(left)} more" if len(left) <= MOST_ROWS else f"{MOST_ROWS} of {len(left)} more",
            element("ul", [element("li", note) for note in thinned(left, MOST_ROWS)]),
        )
        if left
        else None,
    ]


def _detail_section(run: Run) -> list[Child]:
    resolved = run.folder / "config.yaml"
    config = (
        printable(resolved.read_text(encoding="utf-8", errors="replace"), lines=True)
        if resolved.is_file()
        else json.dumps(run.config, indent=2, ensure_ascii=False, default=str)
    )
    versions = [[name, version] for name, version in run.versions.items()]
    return [
        element("h2", "Details"),
        details(_of_all("rounds", len(run.rounds)), _round_table(run)) if run.rounds else None,
        details("Configuration", element("pre", config)),
        details("Versions", table(["package", "version"], versions, words=2)) if versions else None,
    ]


def _of_all(what: str, count: int) -> str:
    return f"All {what}" if count <= MOST_ROWS else f"{MOST_ROWS} of {count} {what}"


def _round_table(run: Run) -> Html:
    two_classes = run.two_classes
    validated = any(r.validation_accuracy is not None for r in run.rounds)
    by_clients = any(r.client_accuracy is not None for r in run.rounds)
    spoken = any(r.wer is not None for r in run.rounds)
    header = [
        "round",
        "accuracy",
        *(["validation"] if validated else []),
        *(["on clients"] if by_clients else []),
        *(["balanced", "AUROC"] if two_classes else []),
        *(["word errors"] if spoken else []),
        "loss",
        "train loss",
        "up",
        "of it updates",
        "down",
        "of it weights",
        "clients",
    ]
    header += ["up / bound", "down / bound", "failures", "attacked", "ε", "ε server", "residual", "seconds"]
    rows = [
        [
            str(r.round),
            format_percent(r.accuracy),
            *([format_percent(r.validation_accuracy)] if validated else []),
            *([format_percent(r.client_accuracy)] if by_clients else []),
            *([format_percent(r.balanced_accuracy), format_number(r.auroc, 3)] if two_classes else []),
            *([format_percent(r.wer)] if spoken else []),
            format_short(r.loss),
            format_short(r.train_loss),
            format_bytes(r.uplink_bytes),
            format_bytes(r.uplink_blob_bytes),
            format_bytes(r.downlink_bytes),
            format_bytes(r.downlink_blob_bytes),
            format_count(r.clients),
            format_number(r.uplink_to_bound, 3),
            format_number(r.downlink_to_bound, 3),
            str(len(r.failures)),
            ", ".join(map(str, r.attacked)) or DASH,
            format_number(r.epsilon, 2),
            format_number(r.epsilon_server, 2),
            format_short(r.residual_norm),
            format_number(r.seconds, 2),
        ]
        for r in thinned(run.rounds, MOST_ROWS)
    ]
    return table(header, rows)
