"""Figures of a study, as data and drawn: lines, dots, bars, distributions, galleries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fl_app.experiments.studies.measured import Measured, attacked, curves, in_form, searches, select
from fl_app.experiments.studies.metrics import at_iteration, read_part
from fl_app.experiments.studies.plan import fits, value_of
from fl_app.experiments.studies.selector import Selector
from fl_app.experiments.studies.study_file import FigureOrder
from fl_app.report.charts.canvas import Theme, blank_chart, shorten, tick_writer, write_percent
from fl_app.report.charts.plots import (
    Curve,
    Point,
    chart_looks,
    draw_curves,
    draw_points,
    label_points,
    legend_below,
)
from fl_app.report.charts.tiles import read_tiles
from fl_app.results import Histogram, Weights

_COLUMNS = 8
"""Maximum number of columns of a search's images."""
_BINS = 40
_BINNED = {"weights.counts": "distance from the first weight", "weights.values.counts": "weight"}
"""Axis titles of the histograms of result.json."""
_SHARES = ("trace.tokens", "accuracy", "best_accuracy", "balanced_accuracy", "validation_accuracy", "wer")


@dataclass(frozen=True)
class Bar:
    """One bar: its group, its series, its height and half its error bar."""

    group: str
    series: str
    height: float
    spread: float


class Density(NamedTuple):
    """Shares of many values by bins of equal width."""

    edges: tuple[float, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Gallery:
    """Pictures in columns; the first one is the original."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Image.Image | None, ...], ...]
    captions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Drawn:
    """The data of a figure; empty if no cell has any."""

    order: FigureOrder
    curves: tuple[Curve, ...] = ()
    points: tuple[Point, ...] = ()
    bars: tuple[Bar, ...] = ()
    samples: Mapping[str, tuple[float, ...]] | None = None
    densities: Mapping[str, Density] | None = None
    gallery: Gallery | None = None

    @property
    def empty(self) -> bool:
        """True if there is nothing to draw."""
        return not (self.curves or self.points or self.bars or self.samples or self.densities or self.gallery)


def gather(order: FigureOrder, cells: Sequence[Measured]) -> Drawn:
    """Read the data of a figure."""
    groups = _series(order, cells)
    if order.kind == "gallery":
        by_iteration = order.series == ("iteration",)
        return Drawn(order, gallery=_searches(order, cells) if by_iteration else _gallery(order, groups))
    if order.kind == "scatter":
        points = [point for label, group in groups.items() if (point := _point(order, label, group))]
        return Drawn(order, points=tuple(points))
    if order.kind == "histogram":
        found = {label: _values(group, order.y) for label, group in groups.items()}
        return Drawn(order, samples={label: values for label, values in found.items() if values})
    if order.kind == "distribution":
        return Drawn(order, densities=_densities(order, groups))
    if order.kind == "bars":
        bars = [bar for label, group in groups.items() for bar in _bars(order, label, group)]
        return Drawn(order, bars=tuple(bars))
    lines = [
        _curve(replace(order, y=y), ", ".join([label] * (not order.more or len(groups) > 1) + named), group)
        for label, group in groups.items()
        for y, named in [(y, [_name(y)] if order.more else []) for y in (order.y, *order.more)]
    ]
    return Drawn(order, curves=tuple(line for line in lines if len(line.x)))


def draw(drawn: Drawn, theme: Theme) -> Figure:
    """Draw a figure that is not empty."""
    if drawn.gallery is not None:
        return _draw_gallery(drawn.gallery, theme)
    count = len(drawn.curves) or len(drawn.samples or ()) or len(drawn.densities or ())
    figure, axes = blank_chart(theme, width=5.6, height=3.6 if count <= 1 else 3.8 + 0.11 * count)
    order = drawn.order
    if drawn.curves:
        draw_curves(axes, drawn.curves, theme)
        axes.set(xlabel=str(order.x), ylabel="" if order.more else _name(order.y))
        if order.log:
            axes.set_yscale("log")
        if len(drawn.curves) > 1:
            legend_below(figure, axes, theme)
    elif drawn.points:
        _draw_points(figure, axes, drawn, theme)
    elif drawn.bars:
        _draw_bars(figure, axes, drawn.bars, theme)
        axes.set_ylabel(_name(order.y))
    elif drawn.samples:
        for (label, values), (color, _, dashes) in zip(
            drawn.samples.items(), chart_looks(theme), strict=False
        ):
            axes.hist(
                values,
                bins=20,
                histtype="step",
                color=color,
                linestyle=dashes,
                linewidth=2,
                label=shorten(label),
            )
        axes.set(xlabel=_name(order.y), ylabel="how many")
        legend_below(figure, axes, theme)
    elif drawn.densities:
        for (label, density), (color, _, dashes) in zip(
            drawn.densities.items(), chart_looks(theme), strict=False
        ):
            axes.stairs(
                density.shares,
                density.edges,
                baseline=None,
                color=color,
                linestyle=dashes,
                linewidth=2,
                label=shorten(label),
            )
        axes.set(xlabel=_BINNED.get(_path(order.y), _name(order.y)), ylabel="share in a bin")
        axes.yaxis.set_major_formatter(tick_writer(write_percent))
        legend_below(figure, axes, theme)
    if order.kind not in ("histogram", "distribution") and _is_share(order.y):
        axes.yaxis.set_major_formatter(tick_writer(write_percent))
    return figure


def _series(order: FigureOrder, cells: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Return the cells of every series; a series of a scatter chart may span two parts."""
    groups: dict[str, list[Measured]] = {}
    for cell in cells:
        if cell.run is not None and fits(cell.planned, order.select):
            values = [value_of(cell.planned, key) or "" for key in order.series]
            groups.setdefault(", ".join(values) or order.title, []).append(cell)
    return groups


def _values(cells: Sequence[Measured], selector: Selector | None) -> tuple[float, ...]:
    return () if selector is None else tuple(select(cells, _over_all(cells, selector)).by_unit().values())


def _over_all(cells: Sequence[Measured], selector: Selector) -> Selector:
    # cells of one series may differ on further axes, which count as repetitions here
    axes = dict.fromkeys(axis for cell in cells for axis in cell.planned.at)
    return replace(selector, over=tuple(axis for axis in ("part", *axes) if axis != "seed"))


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _curve(order: FigureOrder, label: str, cells: Sequence[Measured]) -> Curve:
    if order.y is None or not isinstance(order.x, str):
        return Curve(label, [], [])
    if order.x == "round":
        found: dict[float, Sequence[float]] = {float(k): v for k, v in curves(cells, order.y).items()}
    elif order.x == "iteration":
        found = {float(k): v for k, v in searches(cells, _over_all(cells, order.y)).items()}
    else:
        places = {number: value_of(cell.planned, order.x) for number, cell in enumerate(cells)}
        numbers = {text: float(text) for text in places.values() if text is not None and _is_number(text)}
        found = {
            number: _values([cells[i] for i, at in places.items() if at == text], order.y)
            for text, number in sorted(numbers.items(), key=lambda item: item[1])
        }
    known = {x: [v for v in values if math.isfinite(v)] for x, values in found.items()}
    known = {x: values for x, values in known.items() if values}
    if order.log:  # a log scale has no place for values or bands below 0
        known = {x: values for x, values in known.items() if statistics.fmean(values) > 0}
    several = not order.log and any(len(values) > 1 for values in known.values())
    return Curve(
        label,
        list(known),
        [statistics.fmean(values) for values in known.values()],
        [_spread(values) for values in known.values()] if several else None,
    )


def _point(order: FigureOrder, label: str, cells: Sequence[Measured]) -> Point | None:
    if not isinstance(order.x, Selector) or order.y is None:
        return None
    x, y = (_values([c for c in cells if fits(c.planned, side)], side) for side in (order.x, order.y))
    if not x or not y:
        return None
    return Point(label, statistics.fmean(x), statistics.fmean(y), _error(x), _error(y))


def _error(values: Sequence[float]) -> float:
    return _spread(values) / math.sqrt(len(values))


def _densities(order: FigureOrder, groups: Mapping[str, Sequence[Measured]]) -> dict[str, Density]:
    """Return the runs' histograms on common bins; runs of one series have equal weight."""
    found = {label: [_binned(cell, order.y) for cell in cells] for label, cells in groups.items()}
    known = {label: [one for one in several if one is not None] for label, several in found.items()}
    edges = [edge for several in known.values() for own, _ in several for edge in own]
    if not edges:
        return {}
    common = np.linspace(min(edges), max(edges), _BINS + 1)
    return {
        label: Density(
            tuple(common.tolist()),
            # assume that values are spread evenly within a bin
            tuple(np.mean([np.diff(np.interp(common, *one)) for one in several], axis=0).tolist()),
        )
        for label, several in known.items()
        if several
    }


def _binned(cell: Measured, counts: Selector | None) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the edges of a run's histogram, and the share of its values below each."""
    node = None if cell.run is None else read_part(cell.run, _path(counts).split(".")[:-1])
    if not isinstance(node, Histogram | Weights) or not sum(node.counts):
        return None
    below = np.cumsum([0, *node.counts])
    return node.edges, (below / below[-1]).tolist()


def _path(selector: Selector | None) -> str:
    return "" if selector is None or selector.metric is None else selector.metric.name


def _bars(order: FigureOrder, label: str, cells: Sequence[Measured]) -> list[Bar]:
    groups: dict[str, list[Measured]] = {}
    for cell in cells:
        groups.setdefault(value_of(cell.planned, str(order.x)) or "", []).append(cell)
    heights = {group: _values(members, order.y) for group, members in groups.items()}
    return [
        Bar(group, label if order.series else "", statistics.fmean(values), _spread(values))
        for group, values in heights.items()
        if values
    ]


def _gallery(order: FigureOrder, groups: Mapping[str, Sequence[Measured]]) -> Gallery | None:
    """Return the same images under every series, from its first cell, in the requested form."""
    strips: dict[str, dict[tuple[Any, ...], tuple[Image.Image, str]]] = {}
    originals: dict[tuple[Any, ...], Image.Image] = {}
    for label, cells in groups.items():
        cell = cells[0]
        forms = [False, True] if order.select.form == "worst" else [order.select.form == "adaptive"]
        for adaptive in forms:
            name = f"{label}, adaptive" if adaptive and len(forms) > 1 else label
            for attack in in_form(cell, attacked(cell, order.select), adaptive):
                if adaptive and not attack.adaptive and len(forms) > 1:
                    continue  # nothing to adapt to: shown once
                place = (attack.sender, attack.round)
                for position, tile in enumerate(read_tiles(attack.file("truth"))):
                    originals.setdefault((*place, position), tile)
                for position, tile in enumerate(read_tiles(attack.file("images"))):
                    ssim = attack.scores("ssim")[position : position + 1]
                    caption = f"SSIM {ssim[0]:.2f}" if ssim and ssim[0] is not None else ""
                    strips.setdefault(name, {})[*place, position] = tile, caption
    if not strips or not originals:
        return None
    keys = list(originals)[: order.limit]
    return Gallery(
        ("original", *strips),
        tuple(
            (originals[key], *(strip.get(key, (None, ""))[0] for strip in strips.values())) for key in keys
        ),
        tuple(("", *(strip.get(key, (None, ""))[1] for strip in strips.values())) for key in keys),
    )


def _searches(order: FigureOrder, cells: Sequence[Measured]) -> Gallery | None:
    """Return the course of searches: a row for the first search of every cell, a column per iteration."""
    lines: list[tuple[str, Image.Image, dict[int, tuple[Image.Image, float | None]]]] = []
    for cell in cells:
        if cell.run is None or not fits(cell.planned, order.select):
            continue
        found = in_form(cell, attacked(cell, order.select), order.select.form == "adaptive")
        for attack in found[: order.limit]:
            tiles, truth = read_tiles(attack.file("trace_images")), read_tiles(attack.file("truth"))
            if truth and attack.trace and len(tiles) == len(attack.trace):
                snapshots = zip(attack.trace, tiles, strict=True)
                named = ", ".join(at for axis, at in cell.planned.at.items() if axis != "seed")
                lines.append((named, truth[0], {p.iteration: (tile, p.mse) for p, tile in snapshots}))
    if not lines:
        return None
    steps = sorted({step for _, _, search in lines for step in search})
    steps = [steps[round(i * (len(steps) - 1) / (_COLUMNS - 1))] for i in range(_COLUMNS)]
    columns = list(dict.fromkeys(steps))
    shown = [[at_iteration(search, step) for step in columns] for _, _, search in lines]
    return Gallery(
        ("original", *map(str, columns)),
        tuple((line[1], *(tile for tile, _ in tiles)) for line, tiles in zip(lines, shown, strict=True)),
        tuple(
            (line[0], *("" if mse is None else f"MSE {mse:.1g}" for _, mse in tiles))
            for line, tiles in zip(lines, shown, strict=True)
        ),
    )


def _draw_points(figure: Figure, axes: Axes, drawn: Drawn, theme: Theme) -> None:
    draw_points(axes, drawn.points, theme)
    x = drawn.order.x
    axes.set(xlabel=_name(x if isinstance(x, Selector) else None), ylabel=_name(drawn.order.y))
    label_points(figure, axes, drawn.points, theme)


def _draw_bars(figure: Figure, axes: Axes, bars: Sequence[Bar], theme: Theme) -> None:
    groups = list(dict.fromkeys(bar.group for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    width = 0.8 / len(series)
    for number, (name, (color, _, _)) in enumerate(zip(series, chart_looks(theme), strict=False)):
        own = [bar for bar in bars if bar.series == name]
        axes.bar(
            [groups.index(bar.group) + (number + 0.5) * width - 0.4 for bar in own],
            [bar.height for bar in own],
            width=0.9 * width,
            yerr=[bar.spread for bar in own] if any(bar.spread for bar in own) else None,
            color=color,
            ecolor=theme.muted,
            label=shorten(name) if name else None,
        )
    names = [shorten(group) for group in groups]
    slanted = sum(map(len, groups)) > 45
    # a slanted name ends below its bar; many names are steeper, so that they do not overlap
    axes.set_xticks(range(len(groups)), names)
    if slanted:
        angle = 25 if len(groups) < 8 else 50
        for label in axes.get_xticklabels():
            label.set(rotation=angle, ha="right", rotation_mode="anchor")
    if len(series) > 1:
        legend_below(figure, axes, theme)


def _draw_gallery(gallery: Gallery, theme: Theme) -> Figure:
    columns, rows = len(gallery.columns), len(gallery.rows)
    figure = Figure(figsize=(1.15 * columns, 1.35 * rows + 0.4), facecolor=theme.ground, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for line, tiles, captions in zip(grid, gallery.rows, gallery.captions, strict=True):
        for axes, tile, caption in zip(line, tiles, captions, strict=True):
            axes.set(xticks=[], yticks=[], facecolor=theme.ground)
            axes.spines[:].set_visible(False)
            axes.set_xlabel(caption, fontsize=7.5, color=theme.muted)
            if tile is not None:
                axes.imshow(tile.convert("RGB"), interpolation="nearest")
    for axes, name in zip(grid[0], gallery.columns, strict=True):
        axes.set_title(shorten(name).replace(", ", ",\n"), fontsize=8.5, color=theme.ink)
    return figure


def _name(selector: Selector | None) -> str:
    metric = None if selector is None else selector.metric
    if metric is None:
        return ""
    if metric.traced:
        word = metric.name.removeprefix("trace.").removeprefix("layers.")
        return {"mse": "MSE of images", "distance": "gradients", "tokens": "tokens right"}.get(word, word)
    return metric.name.upper() if metric.unit == "image" else metric.name.replace("_", " ")


def _is_share(selector: Selector | None) -> bool:
    return selector is not None and selector.metric is not None and selector.metric.name in _SHARES


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
