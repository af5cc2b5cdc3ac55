"""The frontier as a drawing: accuracy up, leakage to the right, bytes as size, ε as colour."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from fl_app.report.charts.canvas import write_percent
from fl_app.report.charts.drawing import Circle, Drawing, Line, Words, words_width
from fl_app.report.charts.label_places import Box, Bubble, Place, place_labels
from fl_app.report.data.comparison import Spread, show_spread
from fl_app.report.data.formats import format_bytes, format_number, format_percent, format_short
from fl_app.report.data.frontier import FrontierPoint, Leakage, Panel, pareto

WIDE, NARROW = 760.0, 350.0

LEAK_WORDS: dict[Leakage, str] = {
    "mean": "mean SSIM under the worse attack",
    "best": "SSIM of the attacker's best image",
}

# told apart by colour-blind readers; from blue (little can be learnt) to red
_EPSILON_STEPS = ((1.0, "#1b4f9c"), (3.0, "#56b4e9"), (10.0, "#e69f00"), (math.inf, "#d55e00"))
_NO_EPSILON = "#a3a8b2"

_SIZE = 12.0
_SMALL, _LARGE = 4.5, 13.0
_LINE = 25.0
_LABEL_LENGTH = {WIDE: 34, NARROW: 20}

_Shape = Circle | Line | Words


class _Axis(NamedTuple):
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        steps = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        return [float(value) for value in steps if self.low <= value <= self.high]


def draw_frontier(panel: Panel, by: Leakage, *, width: float = WIDE, titled: bool = True) -> Drawing:
    """Draw one panel, which must have a point."""
    if not panel.points:
        raise ValueError(f"draw_frontier: expected points of {panel.model} on {panel.data}, got none")
    head = 22.0 if titled else 0.0
    height = head + (380.0 if width == WIDE else 320.0)
    inside = Box(48, head + 24, width - 10, height - 44)
    x = _axis([point.leaks[by] for point in panel.points], inside.left, inside.right)
    y = _axis([point.accuracy for point in panel.points], inside.bottom, inside.top)
    radius = _radius([point.bytes for point in panel.points])
    best = pareto(panel.points, by)
    bubbles = [
        Bubble(x.at(point.leaks[by].mean), y.at(point.accuracy.mean), radius(point.bytes))
        for point in panel.points
    ]
    bars = [
        bar
        for point, bubble in zip(panel.points, bubbles, strict=True)
        for bar in _error_bars(point, bubble, x, y, by)
    ]
    legend = _legend(panel.points, radius, top=height, width=width)
    shapes: list[_Shape] = [
        *([Words(4, 16, panel.title, bold=True, size=13)] if titled else []),
        Words(4, head + 13, "accuracy, ↑ better", "muted"),
        Words(inside.right, height - 8, f"← better, {LEAK_WORDS[by]}", "muted", anchor="end"),
        *_grid(x, y, inside),
        *_frontier_line([bubbles[i] for i in best], inside),
        *_discs(panel.points, bubbles, best, by),
        *bars,
        *_labels(panel.labels, bubbles, bars, best, inside, _LABEL_LENGTH[width]),
        *legend.shapes,
    ]
    return Drawing(width, height + legend.height, shapes)


def epsilon_color(epsilon: float | None) -> str:
    """Return the colour of a bubble."""
    if epsilon is None:
        return _NO_EPSILON
    return next(color for limit, color in _EPSILON_STEPS if epsilon <= limit)


def point_words(point: FrontierPoint, by: Leakage, *, optimal: bool) -> str:
    """Return everything about a point in a line."""
    words = [
        f"accuracy {show_spread(point.accuracy, format_percent)}",
        f"{LEAK_WORDS[by]} {show_spread(point.leaks[by], lambda value: format_number(value, 3))}",
        f"{format_bytes(point.bytes)} in {point.rounds} rounds",
        "no ε" if point.epsilon is None else f"ε {format_short(point.epsilon)}",
    ]
    return f"{point.full_name}: {', '.join(words)}{', on the frontier' if optimal else ''}"


def _axis(spreads: Sequence[Spread], start: float, end: float) -> _Axis:
    low = min(spread.mean - (spread.std or 0.0) for spread in spreads)
    high = max(spread.mean + (spread.std or 0.0) for spread in spreads)
    # points that are alike must not look far apart
    spare = max(0.02, 0.1 - (high - low)) / 2 + 0.1 * (high - low)
    return _Axis(low - spare, high + spare, start, end)


def _radius(counts: Sequence[float | None]) -> Callable[[float | None], float]:
    """Return the radius by the logarithm of bytes: defenses differ by factors."""
    known = [math.log10(count) for count in counts if count]
    low, high = min(known, default=0.0), max(known, default=0.0)
    # one decade has the whole range of sizes at least, so that small differences look small
    span = max(high - low, 1.0)

    def radius(count: float | None) -> float:
        return _SMALL if not count else _LARGE - (high - math.log10(count)) / span * (_LARGE - _SMALL)

    return radius


def _grid(x: _Axis, y: _Axis, inside: Box) -> list[_Shape]:
    shapes: list[_Shape] = []
    for value in y.ticks():
        shapes.append(Line([(inside.left, y.at(value)), (inside.right, y.at(value))], "line"))
        shapes.append(Words(inside.left - 6, y.at(value) + 4, write_percent(value), "muted", anchor="end"))
    shapes.append(Line([(inside.left, inside.bottom), (inside.right, inside.bottom)], "muted"))
    for value in x.ticks():
        shapes.append(Line([(x.at(value), inside.bottom), (x.at(value), inside.bottom + 4)], "muted"))
        shapes.append(
            Words(x.at(value), inside.bottom + 17, f"{round(value, 4):g}", "muted", anchor="middle")
        )
    return shapes


def _frontier_line(best: Sequence[Bubble], inside: Box) -> list[_Shape]:
    """Draw the frontier: no run lies above it or to the left of it."""
    ordered = sorted(best, key=lambda bubble: bubble.x)
    corners = [(ordered[0].x, inside.bottom)]
    for bubble in ordered:
        corners += [(bubble.x, corners[-1][1]), (bubble.x, bubble.y)]
    return [Line([*corners, (inside.right, ordered[-1].y)], "muted", 1.2, dashed=True)]


def _error_bars(point: FrontierPoint, bubble: Bubble, x: _Axis, y: _Axis, by: Leakage) -> list[Line]:
    leak, accuracy = point.leaks[by], point.accuracy
    across = [(x.at(leak.mean + sign * (leak.std or 0.0)), bubble.y) for sign in (-1, 1)]
    along = [(bubble.x, y.at(accuracy.mean + sign * (accuracy.std or 0.0))) for sign in (-1, 1)]
    return [Line(across, "ink", 1.2), Line(along, "ink", 1.2)]


def _discs(
    points: Sequence[FrontierPoint], bubbles: Sequence[Bubble], best: frozenset[int], by: Leakage
) -> list[_Shape]:
    # large ones first: a small one must not be hidden
    return [
        Circle(
            *bubbles[i],
            fill=epsilon_color(points[i].epsilon),
            rim="ink" if i in best else "ground",
            rim_width=2.5 if i in best else 1.0,
            title=point_words(points[i], by, optimal=i in best),
        )
        for i in sorted(range(len(points)), key=lambda i: -bubbles[i].radius)
    ]


def _labels(
    labels: Sequence[str],
    bubbles: Sequence[Bubble],
    bars: Sequence[Line],
    best: frozenset[int],
    inside: Box,
    length: int,
) -> list[_Shape]:
    texts = [(_cut(f"{i} {label}", length), str(i)) for i, label in enumerate(labels, start=1)]
    sizes = [
        [(words_width(text, _SIZE, bold=i in best), _SIZE) for text in choices]
        for i, choices in enumerate(texts)
    ]
    order = sorted(range(len(labels)), key=lambda i: i not in best)
    room = Box(inside.left, inside.top - 8, inside.right + 8, inside.bottom)
    places = place_labels(bubbles, sizes, inside=room, order=order, lines=[_around(bar) for bar in bars])
    found = [(i, place) for i, place in enumerate(places) if place is not None]
    words = [
        Words(
            place.box.left,
            place.box.bottom - 0.2 * _SIZE,
            texts[i][place.choice],
            size=_SIZE,
            bold=i in best,
            halo=True,
        )
        for i, place in found
    ]
    return [*(_leader(bubbles[i], place) for i, place in found if place.away), *words]


def _around(bar: Line) -> Box:
    (left, bottom), (right, top) = bar.points
    return Box(left - bar.width, top - bar.width, right + bar.width, bottom + bar.width)


def _leader(bubble: Bubble, place: Place) -> Line:
    x = min(max(bubble.x, place.box.left), place.box.right)
    y = min(max(bubble.y, place.box.top), place.box.bottom)
    distance = math.hypot(x - bubble.x, y - bubble.y)
    share = min(1.0, bubble.radius / distance) if distance else 0.0
    return Line(
        [(bubble.x + share * (x - bubble.x), bubble.y + share * (y - bubble.y)), (x, y)], "muted", 0.8
    )


def _cut(text: str, length: int) -> str:
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def _legend(
    points: Sequence[FrontierPoint],
    radius: Callable[[float | None], float],
    *,
    top: float,
    width: float,
) -> Drawing:
    """Return sizes, colours and the mark of the best, in as many lines as they need."""
    counts = sorted({point.bytes for point in points if point.bytes})
    sizes = [counts[0], counts[-1]] if len(counts) > 1 else counts
    entries = [(radius(count), _NO_EPSILON, "ground", f"{format_bytes(count)} sent") for count in sizes]
    entries += [
        (7.0, color, "ground", words)
        for color, words in _epsilon_entries()
        if color in {epsilon_color(point.epsilon) for point in points}
    ]
    entries.append((7.0, "ground", "ink", "on the frontier"))
    shapes: list[_Shape] = []
    x, y = 4.0, top + 10.0
    for size, fill, rim, words in entries:
        wide = 2 * size + 5 + words_width(words, _SIZE) + 14
        if x > 4 and x + wide > width:
            x, y = 4.0, y + _LINE
        shapes.append(Circle(x + size, y, size, fill, rim, 2.5 if rim == "ink" else 1.0))
        shapes.append(Words(x + 2 * size + 5, y + 4, words, "muted", _SIZE))
        x += wide
    return Drawing(width, y + 18 - top, shapes)


def _epsilon_entries() -> list[tuple[str, str]]:
    limits = [0.0, *(limit for limit, _ in _EPSILON_STEPS)]
    words = [
        f"ε > {low:g}" if math.isinf(high) else f"ε ≤ {high:g}" if not low else f"{low:g} < ε ≤ {high:g}"
        for low, high in itertools.pairwise(limits)
    ]
    return [(_NO_EPSILON, "no ε"), *zip([color for _, color in _EPSILON_STEPS], words, strict=True)]
