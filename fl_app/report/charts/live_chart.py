"""Line chart as SVG inside the page: values at each point, series to switch off, the page's colours.

Without JavaScript each point still says its value when it is pointed at. With it (`fl_app.report.script`)
names of series become switches, and a pointer or the arrow keys read all values at one place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from matplotlib.ticker import LogLocator, MaxNLocator

from fl_app.report.charts.plots import Curve
from fl_app.report.data.formats import format_short
from fl_app.report.markup import Html, element

_WIDTH, _HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 14.0, 14.0, 40.0
_SERIES = 8
_DASHES = ("", "7 4", "2 4", "9 3 2 3")
_SHOWN_DOTS = 40
_FACTOR = 12
"""Ratio of the largest to the smallest value from which the scale is logarithmic, where it may be."""


def live_chart(
    curves: Sequence[Curve],
    *,
    alt: str,
    x_label: str,
    show: Callable[[float], str],
    level: tuple[str, float] | None = None,
    may_be_log: bool = False,
) -> Html:
    """Return the chart of curves that have points; ``level`` is a named horizontal line."""
    levels = [] if level is None else [level[1]]
    xs = [x for curve in curves for x in curve.x]
    ys = [*(y for curve in curves for y in _reach(curve)), *levels]
    log = may_be_log and _is_wide([y for curve in curves for y in curve.y] + levels)
    x_at = _scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT)
    low, high = (min(y for y in ys if y > 0) / 1.6, max(ys) * 1.6) if log else (min(0.0, *ys), max(ys))
    y_at = _scale(low, high if high > low else low + 1, _HEIGHT - _BOTTOM, _TOP, log=log)
    grid = [_tick(value, y_at(value), show) for value in _ticks(low, high, log=log)]
    marks = [_mark(value, x_at(value)) for value in _whole_ticks(min(xs), max(xs))]
    axis = element(
        "text", x_label, x=_n(_WIDTH - _RIGHT), y=_n(_HEIGHT - 4), class_="axis", text_anchor="end"
    )
    groups = [_series(i, curve, x_at, y_at, show, low, log) for i, curve in enumerate(curves)]
    picture = element(
        "svg",
        grid,
        marks,
        axis,
        _level(level, y_at, show) if level else None,
        groups,
        viewBox=f"0 0 {_n(_WIDTH)} {_n(_HEIGHT)}",
        role="img",
        aria_label=alt,
        class_="live",
    )
    names = [
        element(
            "span",
            element("i", class_=f"key s{i % _SERIES}", aria_hidden="true"),
            curve.label,
            class_="series-name",
            data_series=str(i),
        )
        for i, curve in enumerate(curves)
    ]
    return element(
        "figure",
        picture,
        element("figcaption", names, class_="legend") if len(curves) > 1 else None,
        class_="live-chart",
        data_x=x_label,
    )


def _reach(curve: Curve) -> list[float]:
    spread = curve.spread or [0.0] * len(curve.y)
    return [y + sign * s for y, s in zip(curve.y, spread, strict=True) for sign in (-1, 1)]


def _is_wide(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return bool(positive) and max(positive) > _FACTOR * min(positive)


def _scale(
    low: float, high: float, start: float, end: float, *, log: bool = False
) -> Callable[[float], float]:
    def at(value: float) -> float:
        if log:
            share = math.log(max(value, low) / low) / math.log(high / low)
        else:
            share = (value - low) / (high - low) if high > low else 0.5
        return start + share * (end - start)

    return at


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    found = (
        LogLocator(subs=(1.0, 3.0)).tick_values(low, high) if log else MaxNLocator(5).tick_values(low, high)
    )
    return [float(value) for value in found if low <= value <= high]


def _whole_ticks(low: float, high: float) -> list[float]:
    found = MaxNLocator(nbins=8, integer=True).tick_values(low, high)
    return [float(value) for value in found if low <= value <= high]


def _tick(value: float, y: float, show: Callable[[float], str]) -> Html:
    return element(
        "g",
        element("line", x1=_n(_LEFT), x2=_n(_WIDTH - _RIGHT), y1=_n(y), y2=_n(y), class_="grid"),
        element("text", show(value), x=_n(_LEFT - 8), y=_n(y + 5), class_="axis", text_anchor="end"),
    )


def _mark(value: float, x: float) -> Html:
    return element("text", f"{value:g}", x=_n(x), y=_n(_HEIGHT - 22), class_="axis", text_anchor="middle")


def _level(level: tuple[str, float], y_at: Callable[[float], float], show: Callable[[float], str]) -> Html:
    name, value = level
    y = y_at(value)
    return element(
        "g",
        element("line", x1=_n(_LEFT), x2=_n(_WIDTH - _RIGHT), y1=_n(y), y2=_n(y), class_="level"),
        element(
            "text",
            f"{name}: {show(value)}",
            x=_n(_WIDTH - _RIGHT),
            y=_n(y - 5 if y > _TOP + 12 else y + 15),
            class_="axis",
            text_anchor="end",
        ),
    )


def _series(
    index: int,
    curve: Curve,
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
    show: Callable[[float], str],
    low: float,
    log: bool,
) -> Html:
    spreads: Sequence[float | None] = curve.spread or [None] * len(curve.y)
    known = [
        (x, y, spread) for x, y, spread in zip(curve.x, curve.y, spreads, strict=True) if not log or y > 0
    ]
    line = " ".join(f"{_n(x_at(x))},{_n(y_at(y))}" for x, y, _ in known)
    dots = "dots" if len(known) <= _SHOWN_DOTS else "dots faint"
    words = [(x, y, show(y) if spread is None else f"{show(y)} ± {show(spread)}") for x, y, spread in known]
    return element(
        "g",
        _band(known, x_at, y_at) if curve.spread else None,
        element("polyline", points=line, stroke_dasharray=_DASHES[index // _SERIES % len(_DASHES)] or None),
        element(
            "g",
            [
                element(
                    "circle",
                    element("title", f"{curve.label}, {x:g}: {value}"),
                    cx=_n(x_at(x)),
                    cy=_n(y_at(y)),
                    r="3.5",
                    data_at=format_short(x),
                    data_value=value,
                )
                for x, y, value in words
            ],
            class_=dots,
        ),
        class_=f"series s{index % _SERIES}",
        data_series=str(index),
        data_name=curve.label,
    )


def _band(
    known: Sequence[tuple[float, float, float | None]],
    x_at: Callable[[float], float],
    y_at: Callable[[float], float],
) -> Html:
    above = [(x_at(x), y_at(y + (spread or 0.0))) for x, y, spread in known]
    below = [(x_at(x), y_at(y - (spread or 0.0))) for x, y, spread in reversed(known)]
    corners = itertools.chain(above, below)
    return element("polygon", points=" ".join(f"{_n(x)},{_n(y)}" for x, y in corners))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
