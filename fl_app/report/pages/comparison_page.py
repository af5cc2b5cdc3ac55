"""Page of many runs: a sortable table, overlaid accuracy curves, and the frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fl_app.report.charts.live_chart import live_chart
from fl_app.report.charts.plots import Curve
from fl_app.report.data.comparison import (
    LEAK_METRICS,
    ComparisonRow,
    Leak,
    Spread,
    comparison_rows,
    show_spread,
    spread_of,
)
from fl_app.report.data.formats import (
    format_bytes,
    format_factor,
    format_number,
    format_percent,
)
from fl_app.report.data.scores import LPIPS, PSNR, Metric
from fl_app.report.data.thinning import MOST_POINTS, thinned
from fl_app.report.data.update_kinds import WITH, WITHOUT
from fl_app.report.markup import Child, Html, element, page, relative_link, scrolled, text_of
from fl_app.report.pages.frontier_section import frontier_section
from fl_app.report.pages.metric_notes import metric_name, metric_notes
from fl_app.report.pages.panels import panel


def compare_runs(
    run_dirs: Iterable[Path | str],
    out: Path | str,
    *,
    above: Child = None,
    reports: Mapping[Path, Path] | None = None,
) -> Path:
    """Write a comparison to the file ``out``, or to `comparison.html` in the folder ``out``.

    ``above`` comes first on the page. ``reports`` says where the pages of the runs are, by their
    folders, if not beside their results.
    """
    rows = comparison_rows(run_dirs)
    if not rows:
        raise ValueError("compare_runs: expected at least one run folder, got none")
    path = Path(out) / "comparison.html" if Path(out).is_dir() else Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = sum(len(row.runs) for row in rows)
    body: list[Child] = [
        above,
        element("p", "Comparison of federated runs", class_="eyebrow"),
        element("h1", f"{count} runs, {len(rows)} configurations"),
        element(
            "p",
            "Seeds of one configuration share a row: mean ± sample standard deviation. Bytes are those of "
            "all clients in one round; below them, how many times fewer that is than dense float32 exchange. "
            "Leak is that of the image that is worst for the user, which is best for the attacker; below it "
            "the mean over all images. Best is the accuracy on the test samples in the best round: chosen by "
            "validation samples, or by the test samples themselves, which flatters.",
        ),
        _table(rows, _Links(path.parent, reports)),
        _remarks(rows),
        metric_notes(),
        frontier_section(rows),
        _accuracy_chart(rows),
    ]
    path.write_text(page(f"Comparison of {count} runs", body, wide=True), encoding="utf-8")
    return path


class _Links(NamedTuple):
    base: Path
    reports: Mapping[Path, Path] | None

    def to(self, run: Path) -> str | None:
        report = run / "report.html" if self.reports is None else self.reports.get(run)
        return None if report is None or not report.is_file() else relative_link(report, self.base)


def _table(rows: list[ComparisonRow], links: _Links) -> Html:
    two_classes = any(row.two_classes for row in rows)
    plain = ["defense", "model", "data", "seeds", "accuracy", "best"]
    plain += [*(["balanced", "AUROC"] if two_classes else []), "up / round", "down / round"]
    compared = (WITHOUT, WITH)
    leaks = [
        metric_name(metric, " (dB)" if metric is PSNR else "") for _ in compared for metric in LEAK_METRICS
    ]
    titles: list[Child] = [*plain, *leaks, "ε", "ε server", "seconds"]
    groups = element(
        "tr",
        element("td", colspan=str(len(plain))),
        *(
            element("th", f"leak {name}", colspan=str(len(LEAK_METRICS)), class_="group", scope="colgroup")
            for name in compared
        ),
        element("td", colspan="3"),
    )
    header = element(
        "tr",
        [
            element(
                "th",
                title,
                class_="number" if index >= 4 else None,
                scope="col",
            )
            for index, title in enumerate(titles)
        ],
    )
    groups_of = [*[""] * len(plain), *(f"{name}, " for name in compared for _ in LEAK_METRICS), "", "", ""]
    names = [f"{group}{text_of(title)}" for group, title in zip(groups_of, titles, strict=True)]
    body = [
        element(
            "tr",
            [
                # the names are ours, so nothing in them has to be escaped
                Html(cell.replace("<td", f'<td data-label="{name}"', 1))
                for cell, name in zip(_cells(row, links, two_classes=two_classes), names, strict=True)
            ],
        )
        for row in rows
    ]
    caption = element("caption", "A row for each configuration; a heading sorts the rows by its column")
    return scrolled(caption, element("thead", groups, header), element("tbody", body))


def _cells(row: ComparisonRow, links: _Links, *, two_classes: bool) -> list[Html]:
    state = None if row.status == "finished" else element("small", " ", row.status)
    return [
        _word(row.defense, element("small", " ", row.differs) if row.differs else None, state),
        _word(row.model),
        _word(row.data),
        element("td", [_seed_link(row, i, links) for i in range(len(row.seeds))], data_value=row.seeds[0]),
        _number(row.accuracy, format_percent),
        _number(row.best_accuracy, format_percent, _chosen_by(row)),
        *(_two_classes(row) if two_classes else []),
        _bytes(row.uplink_per_round, row.dense_per_round),
        _bytes(row.downlink_per_round, row.dense_per_round),
        *(_leak(leak, metric) for leak in (row.undefended, row.defended) for metric in LEAK_METRICS),
        _number(row.epsilon, lambda value: format_number(value, 2)),
        _number(row.epsilon_server, lambda value: format_number(value, 2)),
        _number(row.seconds, lambda value: format_number(value, 1)),
    ]


def _chosen_by(row: ComparisonRow) -> Html | None:
    return element("small", f" by {row.best_chosen_by}") if row.best_chosen_by else None


def _two_classes(row: ComparisonRow) -> list[Html]:
    # of more classes the table has no balanced accuracy: next to an empty AUROC it would look like a failure
    balanced = row.balanced_accuracy if row.two_classes else None
    return [_number(balanced, format_percent), _number(row.auroc, lambda value: format_number(value, 3))]


def _word(text: str, *below: Child) -> Html:
    return element("td", text, *below, data_value=text)


def _seed_link(row: ComparisonRow, index: int, links: _Links) -> list[Child]:
    href = links.to(row.runs[index].folder)
    gap = ", " if index else None
    return [gap, row.seeds[index] if href is None else element("a", row.seeds[index], href=href)]


def _number(spread: Spread | None, show: Callable[[float | None], str], *below: Child) -> Html:
    return element("td", show_spread(spread, show), *below, class_="number", data_value=_sort_key(spread))


def _sort_key(spread: Spread | None) -> str:
    if spread is None:
        return ""
    # the spelling that JavaScript reads
    return repr(spread.mean) if math.isfinite(spread.mean) else "Infinity" if spread.mean > 0 else "-Infinity"


def _bytes(sent: Spread | None, dense: float | None) -> Html:
    if sent is None:
        return _number(None, format_bytes)
    # a deviation below the last digit shown says nothing
    steady = sent.std is None or sent.std < 0.0005 * abs(sent.mean)
    below = element("small", " ", format_factor(dense, sent.mean))
    return _number(Spread(sent.mean, None) if steady else sent, format_bytes, below)


def _leak(leak: Leak, metric: Metric) -> Html:
    worst, mean = leak.worst[metric.name], leak.mean[metric.name]
    if metric is LPIPS and leak.lpips_missing:
        return element("td", element("small", "not measured"), class_="number", data_value="")
    show = _bare_psnr if metric is PSNR else metric.show
    return _number(
        worst,
        show,
        element("small", " ", show_spread(mean, show), title="mean over all images") if mean else None,
    )


def _bare_psnr(value: float | None) -> str:
    # the header says the unit: the table is wide enough without it
    return format_number(value, 2)


def _remarks(rows: list[ComparisonRow]) -> list[Child]:
    remarks = []
    if any(leak.lpips_missing for row in rows for leak in (row.undefended, row.defended)):
        remarks.append("LPIPS not measured (weights missing) where the table says so.")
    if any(row.status != "finished" for row in rows):
        remarks.append(
            "Rows with a status below their name did not finish; their numbers are of the rounds they have."
        )
    if any(row.of_sums for row in rows):
        names = ", ".join(dict.fromkeys(row.label for row in rows if row.of_sums))
        remarks.append(
            f"With secure aggregation ({names}) the leak {WITH} is that of the sum of a round's clients, "
            "which is all that the server sees. A sum holds the images of all of them, the update "
            f"{WITHOUT} those of one."
        )
    if any(row.epsilon != row.epsilon_server for row in rows):
        remarks.append(
            "ε is against whoever sees only the models, while it stays secret who takes part in a round; "
            "“ε server” is against the server, which knows them."
        )
    compared = dict.fromkeys(row.epsilon_adjacency for row in rows if row.epsilon_adjacency)
    for adjacency in compared:
        names = ", ".join(dict.fromkeys(row.label for row in rows if row.epsilon_adjacency == adjacency))
        remarks.append(f"ε of {names} compares federations that differ by this: {adjacency}.")
    return [element("p", remark, class_="muted") for remark in remarks]


def _accuracy_chart(rows: list[ComparisonRow]) -> list[Child]:
    curves = [
        curve
        for row, label in zip(rows, _labels(rows), strict=True)
        if (curve := _accuracy_curve(row, label)).x
    ]
    if not curves:
        return []
    alt = "accuracy over rounds, a line per row of the table"
    picture = live_chart(curves, alt=alt, x_label="round", show=format_percent)
    words = element("p", "Lines are means over seeds, bands one standard deviation.", class_="muted")
    charts = element("div", panel("Accuracy over rounds", picture, words), class_="charts")
    return [element("h2", "Training"), charts]


def _labels(rows: list[ComparisonRow]) -> list[str]:
    models, datas = {row.model for row in rows}, {row.data for row in rows}
    return [
        ", ".join(
            [row.label]
            + ([row.model] if len(models) > 1 else [])
            + ([row.data] if len(datas) > 1 else [])
            + ([row.status] if row.status != "finished" else [])
        )
        for row in rows
    ]


def _accuracy_curve(row: ComparisonRow, label: str) -> Curve:
    by_round: dict[int, list[float]] = {}
    for run in row.runs:
        for r in run.rounds:
            if r.accuracy is not None and math.isfinite(r.accuracy):
                by_round.setdefault(r.round, []).append(r.accuracy)
    numbers = thinned(sorted(by_round), MOST_POINTS)
    spreads = [(number, spread) for number in numbers if (spread := spread_of(by_round[number]))]
    band = [spread.std or 0.0 for _, spread in spreads] if len(row.runs) > 1 else None
    return Curve(label, [number for number, _ in spreads], [spread.mean for _, spread in spreads], band)
