"""Frontier on a page: a chart with labelled bubbles, and the same numbers in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fl_app.report.charts.drawing import Drawing, drawn_png, inline_svg, stack, svg_file
from fl_app.report.charts.frontier_chart import LEAK_WORDS, NARROW, WIDE, draw_frontier
from fl_app.report.data.comparison import ComparisonRow, comparison_rows, show_spread
from fl_app.report.data.formats import format_bytes, format_number, format_percent
from fl_app.report.data.frontier import FrontierPoint, Leakage, Panel, frontier_panels, pareto
from fl_app.report.markup import Child, Html, element, table
from fl_app.report.pages.panels import panel as box


def write_frontier(run_dirs: Iterable[Path | str], path: Path, *, by: Leakage = "mean") -> list[Path]:
    """Write the frontier of the runs as ``path`` with the endings `.png` and `.svg`."""
    drawings = frontier_drawings(comparison_rows(run_dirs), by=by)
    if not drawings:
        raise ValueError(
            "write_frontier: expected a configuration with an accuracy and an attack whose images were "
            "scored, found none"
        )
    drawing = stack(drawings)
    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    png.write_bytes(drawn_png(drawing))
    svg.write_text(svg_file(drawing), encoding="utf-8")
    return [png, svg]


def frontier_drawings(rows: Iterable[ComparisonRow], *, by: Leakage = "mean") -> list[Drawing]:
    """Return a drawing for each model and data that have points."""
    return [draw_frontier(panel, by) for panel in frontier_panels(rows) if panel.points]


def frontier_section(rows: Sequence[ComparisonRow], *, by: Leakage = "mean") -> list[Child]:
    """Return a box for each model and data; nothing if no configuration has both numbers."""
    panels = frontier_panels(rows)
    if not any(panel.points for panel in panels):
        return []
    return [
        element("h2", "The frontier: accuracy against worst-case leakage", id="frontier"),
        element(
            "p",
            "Up is more accurate, left leaks less: the best place is the upper left corner. Leakage is the "
            f"{LEAK_WORDS[by]}: of all attacks that were tried on what the server saw, plain or adapted to "
            "the defense, the one that came closest. A larger bubble sent more bytes, up and down over the "
            "whole training; its colour is ε against the server, grey where nothing is promised. Bars are "
            "one standard deviation over seeds. A ring marks the frontier: no other one is at least as "
            "accurate and leaks no more.",
        ),
        *(_panel(panel, by) for panel in panels if panel.points),
        *(_left_out(panel) for panel in panels if not panel.points),
    ]


def _panel(panel: Panel, by: Leakage) -> Html:
    alt = f"accuracy against leakage of {len(panel.points)} configurations; the table below has the numbers"
    return box(
        panel.title,
        inline_svg(draw_frontier(panel, by, width=WIDE, titled=False), alt=alt, class_="frontier roomy"),
        inline_svg(draw_frontier(panel, by, width=NARROW, titled=False), alt=alt, class_="frontier tight"),
        [element("p", words, class_="muted") for words in caption(panel.points)],
        _left_out(panel),
        _table(panel.points, by),
    )


def caption(points: Sequence[FrontierPoint]) -> list[str]:
    """Return notes on the origin of the numbers."""
    joined: dict[str, list[str]] = {}
    for point in points:
        if point.joined:
            sources = f"accuracy of {_runs([point.trained])}, leakage of {_runs(point.attacked)}"
            joined.setdefault(sources, []).append(point.full_name)
    why = "Joined, as their configs differ only in the attack, the rounds and the machine"
    words = [f"{why}: {sources} ({'; '.join(names)})." for sources, names in joined.items()]
    if len({point.rounds for point in points}) > 1:
        words.append("Not all were trained for the same number of rounds: see the table.")
    if len({point.tries for point in points}) > 1:
        words.append(
            "Not all were attacked in the same way, so their leakage is not quite comparable: see the table."
        )
    return words


def _runs(rows: Sequence[ComparisonRow]) -> str:
    lengths = sorted({len(run.rounds) for row in rows for run in row.runs})
    count = sum(len(row.runs) for row in rows)
    rounds = " or ".join(map(str, lengths))
    return f"{count} run{'' if count == 1 else 's'} of {rounds} round{'' if rounds == '1' else 's'}"


def _left_out(panel: Panel) -> Html | None:
    if not panel.left_out:
        return None
    names = "; ".join(f"{name} ({reason})" for name, reason in panel.left_out)
    return element("p", f"Not shown of {panel.model} on {panel.data}: {names}.", class_="muted")


def _table(points: Sequence[FrontierPoint], by: Leakage) -> Html:
    best = pareto(points, by)
    header = ["", "defense", "on the frontier", "accuracy", "mean SSIM", "best SSIM"]
    header += ["bytes", "ε", "rounds", "seeds", "worst attack", "attacked by"]
    rows = [
        [
            str(i + 1),
            point.full_name,
            "● yes" if i in best else "no",
            show_spread(point.accuracy, format_percent),
            *(show_spread(point.leaks[leak], lambda v: format_number(v, 3)) for leak in ("mean", "best")),
            format_bytes(point.bytes),
            "none" if point.epsilon is None else format_number(point.epsilon, 2),
            str(point.rounds),
            ", ".join(point.trained.seeds),
            f"{point.worst_form.attack}, {'adaptive' if point.worst_form.adaptive else 'plain'}",
            ", ".join(f"{name} (batch of {batch or '?'})" for name, batch in sorted(point.tries, key=str)),
        ]
        for i, point in enumerate(points)
    ]
    return table(header, rows, words=3)
