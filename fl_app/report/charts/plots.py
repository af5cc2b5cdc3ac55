"""Charts as PNG bytes, drawn in a light and a dark theme where a page has both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox
from torch import Tensor

from fl_app.report.charts.canvas import (
    LIGHT,
    Theme,
    blank_chart,
    png_bytes,
    shorten,
    tick_writer,
    write_percent,
)
from fl_app.report.data.formats import format_bytes, format_short
from fl_app.report.data.thinning import MOST_POINTS, extremes

LARGEST = 1e100
"""Largest number in a chart: axes go beyond their curves, and must stay within floats."""


class Curve(NamedTuple):
    """One line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    """Half the height of a band around the line."""

    @classmethod
    def of(cls, label: str, points: Iterable[tuple[int, float | None]]) -> Curve:
        """Return the line through those points that a chart can show: known and finite, and not too many."""
        finite = [(x, y) for x, y in points if y is not None and abs(y) <= LARGEST]
        known = extremes(finite, MOST_POINTS)
        return cls(label, [x for x, _ in known], [y for _, y in known])


class Point(NamedTuple):
    """One dot of a scatter chart with its spread in both directions."""

    label: str
    x: float
    y: float
    x_spread: float = 0.0
    y_spread: float = 0.0


def plot_accuracy(curves: Sequence[Curve], theme: Theme = LIGHT) -> bytes:
    """Draw accuracy in percent over rounds."""
    # a legend of many rows must not eat the chart
    figure, axes = blank_chart(theme, height=2.9 if len(curves) <= 1 else 3.2 + 0.11 * len(curves))
    draw_curves(axes, curves, theme)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(tick_writer(write_percent))
    axes.set(xlabel="round", ylabel="accuracy")
    if len(curves) > 1:
        legend_below(figure, axes, theme)
    return png_bytes(figure)


def plot_bytes(up: Curve, down: Curve, dense: float | None, theme: Theme = LIGHT) -> bytes:
    """Draw the bytes of each round in both directions, and those of a dense exchange as a line."""
    figure, axes = blank_chart(theme)
    draw_curves(axes, [curve for curve in (up, down) if len(curve.x)], theme)
    if dense:
        _draw_level(axes, dense, "dense, each way", theme)
    values = [*up.y, *down.y, *([dense] if dense else [])]
    _scale(axes, values, compared=values)
    axes.yaxis.set_major_formatter(tick_writer(format_bytes))
    axes.set(xlabel="round", ylabel="bytes per round, all clients")
    legend_below(figure, axes, theme)
    return png_bytes(figure)


def plot_residual(curve: Curve, theme: Theme = LIGHT) -> bytes:
    """Draw the norm of what clients hold back, over rounds."""
    figure, axes = blank_chart(theme)
    draw_curves(axes, [curve], theme)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="round", ylabel="residual norm")
    return png_bytes(figure)


def plot_epsilon(curves: Sequence[Curve], budget: float | None, theme: Theme = LIGHT) -> bytes:
    """Draw ε against each observer by round, and the budget as a line."""
    figure, axes = blank_chart(theme)
    draw_curves(axes, curves, theme)
    if budget is not None:
        _draw_level(axes, budget, "budget", theme)
    limits = [] if budget is None else [budget]
    # that each of them grows is no reason: lines far apart are
    _scale(
        axes,
        [*(y for curve in curves for y in curve.y), *limits],
        compared=[*(max(curve.y) for curve in curves), *limits],
    )
    axes.yaxis.set_major_formatter(tick_writer(format_short))
    axes.set(xlabel="round", ylabel="ε spent so far")
    if len(curves) > 1 or budget is not None:
        legend_below(figure, axes, theme)
    return png_bytes(figure)


def plot_tradeoff(points: Sequence[Point], theme: Theme = LIGHT) -> bytes:
    """Draw accuracy against leakage; the upper left corner is the place to be."""
    figure, axes = blank_chart(theme, height=4.0)
    draw_points(axes, points, theme)
    axes.yaxis.set_major_formatter(tick_writer(write_percent))
    axes.set(xlabel="leak: PSNR of the attacker's best image (dB)", ylabel="final accuracy")
    label_points(figure, axes, points, theme)
    return png_bytes(figure)


def plot_partition(
    histogram: Tensor, class_names: Sequence[str], path: Path | str, *, what: str = "class"
) -> None:
    """Write how many samples of each class each client holds: ``histogram`` is (clients, classes)."""
    if histogram.ndim != 2 or 0 in histogram.shape or histogram.shape[1] != len(class_names):
        raise ValueError(
            f"plot_partition: histogram must be (clients, {len(class_names)}), got {tuple(histogram.shape)}"
        )
    counts = histogram.detach().cpu().to(torch.float64).T.numpy()
    classes, clients = counts.shape
    figure, axes = blank_chart(
        LIGHT, width=min(9.0, max(4.6, 1.8 + 0.42 * clients)), height=min(7.0, max(2.2, 1.2 + 0.3 * classes))
    )
    blues = LinearSegmentedColormap.from_list("count", ["#f4f6f9", "#7fb6dd", "#0072b2", "#062f4f"])
    picture = axes.imshow(
        counts, cmap=blues, vmin=0, vmax=max(counts.max(), 1), aspect="auto", interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set(xlabel="client", ylabel=what)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    step = math.ceil(classes / 20)
    axes.set_yticks(range(0, classes, step), [shorten(name) for name in class_names[::step]])
    if clients <= 16 and classes <= 20:
        for row, column in itertools.product(range(classes), range(clients)):
            dark = counts[row, column] > 0.45 * counts.max()
            axes.text(
                column,
                row,
                f"{counts[row, column]:.0f}",
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else LIGHT.ink,
            )
    bar = figure.colorbar(picture, ax=axes, label="samples", pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=LIGHT.muted)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(png_bytes(figure))


def draw_curves(axes: Axes, curves: Sequence[Curve], theme: Theme) -> None:
    """Draw lines with their bands, each in a look of its own."""
    for curve, (color, _, dashes) in zip(curves, chart_looks(theme), strict=False):
        # a line of one point is invisible, a dot at each of hundreds is a mess
        marker = "o" if len(curve.x) <= 30 else None
        axes.plot(
            curve.x,
            curve.y,
            color=color,
            linestyle=dashes,
            linewidth=2,
            marker=marker,
            markersize=4,
            label=shorten(curve.label, 34),
        )
        if curve.spread is not None:
            low = [y - s for y, s in zip(curve.y, curve.spread, strict=True)]
            high = [y + s for y, s in zip(curve.y, curve.spread, strict=True)]
            axes.fill_between(curve.x, low, high, color=color, alpha=0.16, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def draw_points(axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    """Draw dots with their spread in both directions, each in a look of its own."""
    for point, (color, marker, _) in zip(points, chart_looks(theme), strict=False):
        axes.errorbar(
            point.x,
            point.y,
            xerr=point.x_spread or None,
            yerr=point.y_spread or None,
            color=color,
            marker=marker,
            markersize=8,
            markeredgecolor=theme.ground,
            capsize=3,
            linestyle="none",
        )
    axes.margins(x=0.16, y=0.16)


def chart_looks(theme: Theme) -> itertools.cycle[tuple[str, str, str]]:
    """Return colour, marker and dashes of one series after the other."""
    # colour alone stops telling lines apart after one turn of the palette: then markers and dashes change
    turns = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))
    return itertools.cycle([(color, *turn) for turn in turns for color in theme.series])


def legend_below(figure: Figure, axes: Axes, theme: Theme) -> None:
    """Write below the chart what its lines are."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        columns = 3 if max(map(len, labels)) <= 16 else 2
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=10,
            labelcolor=theme.ink,
        )


def _draw_level(axes: Axes, value: float, label: str, theme: Theme) -> None:
    axes.axhline(value, color=theme.muted, linestyle=(0, (4, 3)), linewidth=1.4, label=label)


def _scale(axes: Axes, values: Sequence[float], *, compared: Sequence[float]) -> None:
    """Make room for all ``values``, on a logarithmic scale if those ``compared`` differ much."""
    positive = [value for value in values if value > 0]
    apart = [value for value in compared if value > 0]
    if apart and max(apart) > 12 * min(apart):
        axes.set_yscale("log")
        axes.set_ylim(min(positive) / 1.6, max(positive) * 1.6)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=12))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
    else:
        axes.set_ylim(bottom=0)


def label_points(figure: Figure, axes: Axes, points: Sequence[Point], theme: Theme) -> None:
    """Write each label at the first of eight places around its dot where it covers nothing yet."""
    figure.draw_without_rendering()
    spots = [axes.transData.transform((point.x, point.y)) for point in points]
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in spots]
    sides: list[tuple[float, float, str, str]] = [
        (9, 0, "left", "center"),
        (-9, 0, "right", "center"),
        (0, 9, "center", "bottom"),
        (0, -9, "center", "top"),
        (7, 7, "left", "bottom"),
        (-7, 7, "right", "bottom"),
        (7, -7, "left", "top"),
        (-7, -7, "right", "top"),
    ]
    inside = axes.get_window_extent()
    for number, (point, (color, _, _)) in enumerate(zip(points, chart_looks(theme), strict=False)):
        text = axes.annotate(
            shorten(point.label, 34),
            (point.x, point.y),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=9.5,
            color=color,
            annotation_clip=False,
        )
        text.set_in_layout(False)
        others = taken[:number] + taken[number + 1 :]
        for dx, dy, ha, va in sides:
            text.set(position=(dx, dy), ha=ha, va=va)
            box = text.get_window_extent()
            if not box.count_overlaps(others) and inside.x0 <= box.x0 and box.x1 <= inside.x1:
                break
        taken.append(text.get_window_extent())
