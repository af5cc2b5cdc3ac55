"""Report section on searches: distance of gradients and of images by iteration."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fl_app.report.charts.canvas import LIGHT, Theme, blank_chart, png_bytes
from fl_app.report.charts.tiles import read_tiles, tile_uri
from fl_app.report.data.update_kinds import update_words
from fl_app.report.markup import Child, Html, element
from fl_app.report.pages.panels import panel, themed_image
from fl_app.results import Attack, Run, TracePoint

_SHOWN = 6
"""Searches on a page, and pictures of each."""


def trace_section(run: Run) -> list[Child]:
    """Return a chart of every search with snapshots, and some of its images."""
    traced = [attack for attack in run.comparisons if attack.trace and attack.update != "trained"]
    if not traced:
        return []
    more = len(traced) - _SHOWN
    return [
        element("h2", "How the searches went"),
        element(
            "p",
            "By step: the mean squared difference of the guessed and the seen gradient, thin by parameter, "
            "and the mean squared error of the images, which the attacker cannot see.",
        ),
        element("div", [_panel(run, attack) for attack in traced[:_SHOWN]], class_="charts"),
        element("p", f"{more} more are in result.json.") if more > 0 else None,
    ]


def plot_trace(points: Sequence[TracePoint], theme: Theme = LIGHT) -> bytes:
    """Draw differences and errors by step, on a logarithmic scale."""
    figure, axes = blank_chart(theme)
    for name in points[0].layers:
        _line(axes, [(p.iteration, p.layers.get(name)) for p in points], theme.muted, None, 0.7)
    _line(axes, [(p.iteration, p.distance) for p in points], theme.series[0], "gradients", 2.0)
    _line(axes, [(p.iteration, p.mse) for p in points], theme.series[1], "images", 2.0)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.set(xlabel="step", ylabel="mean squared difference")
    axes.legend(frameon=False, fontsize=10, labelcolor=theme.ink)
    return png_bytes(figure)


def _line(
    axes: Axes, points: Sequence[tuple[int, float | None]], color: str, label: str | None, width: float
) -> None:
    # nothing below 0 has a place on the scale, and a solved layer may differ by nothing
    known = [(step, value) for step, value in points if value is not None and value > 0]
    if known:
        axes.plot(*zip(*known, strict=True), color=color, label=label, linewidth=width)


def _panel(run: Run, attack: Attack) -> Html:
    form = f"{attack.name}{' (adaptive)' if attack.adaptive else ''}"
    title = f"{form}, round {attack.round}, client {attack.sender}: {update_words(run, attack)}"
    chart = themed_image(lambda theme: plot_trace(attack.trace, theme), f"search of {title}, by step")
    return panel(title, chart, _strip(attack))


def _strip(attack: Attack) -> Html | None:
    """Return a few images of the search, the last one among them, each under its step."""
    tiles = read_tiles(attack.file("trace_images"))
    if len(tiles) != len(attack.trace):
        return None
    step = max(1, -(-len(tiles) // _SHOWN))
    chosen = sorted({*range(0, len(tiles), step), len(tiles) - 1})
    figures = [
        element(
            "figure",
            element("img", class_="tile", src=tile_uri(tiles[i]), alt=f"the image after {points} steps"),
            element("figcaption", str(points)),
        )
        for i, points in ((i, attack.trace[i].iteration) for i in chosen)
    ]
    return element("div", figures, class_="strip")
