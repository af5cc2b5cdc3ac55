"""Drawing of circles, lines and words, written as SVG or PNG.

Charts of matplotlib are pictures; one whose parts say what they are when pointed at, and that
follows the colours of the page around it, has to be SVG of our own.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from matplotlib import patches
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.textpath import text_to_path

from fl_app.report.charts.canvas import LIGHT, Theme
from fl_app.report.markup import Html, element

_PIXELS_PER_UNIT = 2
_HALO = 3
_FONT = "DejaVu Sans"
_FONTS = f"'{_FONT}', Verdana, system-ui, sans-serif"
"""The widest first: a text that fits in it fits in the others."""

_POINTS_PER_UNIT = 72 / 100

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Circle:
    """A disc with a rim; ``title`` is shown when it is pointed at."""

    x: float
    y: float
    radius: float
    fill: str
    rim: str
    rim_width: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points."""

    points: Sequence[tuple[float, float]]
    color: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Words:
    """One line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    color: str = "ink"
    size: float = 12.0
    anchor: Anchor = "start"
    bold: bool = False
    halo: bool = False
    """True if lines behind it keep a distance."""


class Drawing(NamedTuple):
    """Shapes from back to front; y goes down. Colours are roles of a theme, such as `ink`, or hexadecimal."""

    width: float
    height: float
    shapes: Sequence[Circle | Line | Words]


def words_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return how wide a line of text is."""
    font = FontProperties(family=_FONT, size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def stack(drawings: Sequence[Drawing]) -> Drawing:
    """Put drawings below one another."""
    shapes: list[Circle | Line | Words] = []
    top = 0.0
    for drawing in drawings:
        shapes += [_lower(shape, top) for shape in drawing.shapes]
        top += drawing.height
    return Drawing(max((drawing.width for drawing in drawings), default=0.0), top, shapes)


def svg_file(drawing: Drawing) -> str:
    """Return the text of an SVG file, on white."""
    ground = element("rect", width="100%", height="100%", style=f"fill:{LIGHT.ground}")
    shapes = [_svg(shape, _colors(LIGHT)) for shape in drawing.shapes]
    return element("svg", ground, shapes, xmlns="http://www.w3.org/2000/svg", **_size(drawing)) + "\n"


def inline_svg(drawing: Drawing, *, alt: str, class_: str) -> Html:
    """Return SVG for a page, in the colours of its style sheet."""
    roles = {"ground": "card", "ink": "ink", "muted": "muted", "line": "line"}
    colors = {role: f"var(--{variable})" for role, variable in roles.items()}
    shapes = [_svg(shape, colors) for shape in drawing.shapes]
    return element("svg", shapes, role="img", aria_label=alt, class_=class_, **_size(drawing))


def drawn_png(drawing: Drawing) -> bytes:
    """Return the drawing as a PNG, on white."""
    figure = Figure(figsize=(drawing.width / 100, drawing.height / 100), facecolor=LIGHT.ground)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.set_axis_off()
    colors = _colors(LIGHT)

    def shade(color: str) -> str:
        return colors.get(color, color)

    for order, shape in enumerate(drawing.shapes):
        if isinstance(shape, Circle):
            axes.add_patch(
                patches.Circle(
                    (shape.x, shape.y),
                    shape.radius,
                    facecolor=shade(shape.fill),
                    edgecolor=shade(shape.rim),
                    linewidth=shape.rim_width * _POINTS_PER_UNIT,
                    zorder=order,
                )
            )
        elif isinstance(shape, Line):
            axes.plot(
                *zip(*shape.points, strict=True),
                color=shade(shape.color),
                linewidth=shape.width * _POINTS_PER_UNIT,
                linestyle=(0, (4, 3)) if shape.dashed else "-",
                solid_capstyle="butt",
                zorder=order,
            )
        else:
            axes.text(
                shape.x,
                shape.y,
                shape.text,
                color=shade(shape.color),
                fontsize=shape.size * _POINTS_PER_UNIT,
                family=_FONT,
                weight="bold" if shape.bold else "normal",
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                va="baseline",
                parse_math=False,
                path_effects=[withStroke(linewidth=_HALO * _POINTS_PER_UNIT, foreground=LIGHT.ground)]
                if shape.halo
                else None,
                zorder=order,
            )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100 * _PIXELS_PER_UNIT)
    return buffer.getvalue()


def _lower(shape: Circle | Line | Words, by: float) -> Circle | Line | Words:
    if isinstance(shape, Line):
        return Line([(x, y + by) for x, y in shape.points], shape.color, shape.width, shape.dashed)
    return type(shape)(**{**shape.__dict__, "y": shape.y + by})


def _colors(theme: Theme) -> dict[str, str]:
    return {role: getattr(theme, role) for role in ("ground", "ink", "muted", "line")}


def _size(drawing: Drawing) -> dict[str, str]:
    width, height = _number(drawing.width), _number(drawing.height)
    return {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}


def _svg(shape: Circle | Line | Words, colors: Mapping[str, str]) -> Html:
    def shade(color: str) -> str:
        return colors.get(color, color)

    if isinstance(shape, Circle):
        return element(
            "circle",
            element("title", shape.title) if shape.title else None,
            cx=_number(shape.x),
            cy=_number(shape.y),
            r=_number(shape.radius),
            style=f"fill:{shade(shape.fill)};stroke:{shade(shape.rim)};stroke-width:{_number(shape.rim_width)}",
        )
    if isinstance(shape, Line):
        dashes = ";stroke-dasharray:4 3" if shape.dashed else ""
        return element(
            "polyline",
            points=" ".join(f"{_number(x)},{_number(y)}" for x, y in shape.points),
            style=f"fill:none;stroke:{shade(shape.color)};stroke-width:{_number(shape.width)}{dashes}",
        )
    weight = ";font-weight:bold" if shape.bold else ""
    halo = f";stroke:{shade('ground')};stroke-width:{_HALO}px;paint-order:stroke" if shape.halo else ""
    return element(
        "text",
        shape.text,
        x=_number(shape.x),
        y=_number(shape.y),
        text_anchor=shape.anchor,
        style=f"fill:{shade(shape.color)};font:{_number(shape.size)}px {_FONTS}{weight}{halo}",
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
