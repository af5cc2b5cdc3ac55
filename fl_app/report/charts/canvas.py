"""Canvas of every chart: two themes, bare axes, PNG output.

Only matplotlib's object interface is used: `pyplot` would keep state between
reports that are made in one process.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter


class Theme(NamedTuple):
    """The colours of a chart; those of the page's style sheet."""

    ground: str
    ink: str
    muted: str
    line: str
    series: tuple[str, ...]


# Okabe and Ito's palette (told apart by colour-blind readers), its yellow replaced and its blues
# lightened for the dark ground
LIGHT = Theme(
    "#ffffff",
    "#1c1e24",
    "#5f6470",
    "#dfe0dc",
    ("#0072b2", "#d55e00", "#009e73", "#a6488a", "#8a6d00", "#3f9fd8", "#e69f00", "#555b66"),
)
DARK = Theme(
    "#1d2026",
    "#e9eaed",
    "#a0a6b2",
    "#343943",
    ("#5aa9e6", "#ff8a4c", "#35c79a", "#d98cc4", "#d8b93a", "#9fd3f5", "#f3b73e", "#b4bac6"),
)


def blank_chart(theme: Theme, *, width: float = 4.8, height: float = 2.9) -> tuple[Figure, Axes]:
    """Return an empty chart, in inches, with nothing on it but the horizontal grid."""
    figure = Figure(figsize=(width, height), facecolor=theme.ground, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor(theme.ground)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(theme.muted)
    axes.grid(axis="y", color=theme.line, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.muted, labelsize=10, length=0)
    axes.xaxis.label.set(color=theme.ink, fontsize=10)
    axes.yaxis.label.set(color=theme.ink, fontsize=10)
    return figure, axes


def png_bytes(figure: Figure) -> bytes:
    """Return a finished chart as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


def svg_bytes(figure: Figure) -> bytes:
    """Return a finished chart as an SVG, the same bytes whenever it is the same chart."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "fl-app"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def tick_writer(write: Callable[[float], str]) -> FuncFormatter:
    """Let ``write`` spell the numbers of an axis."""
    return FuncFormatter(lambda value, _: write(value))


def write_percent(share: float) -> str:
    """Write a share as percent, as short as it can be on an axis."""
    return f"{round(100 * share, 2):g} %"


def shorten(text: str, length: int = 18) -> str:
    """Return a label of at most ``length`` characters that matplotlib shows literally."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    plain = plain if len(plain) <= length else plain[: length - 1] + "…"
    # a dollar sign would start matplotlib's mathematics, a leading underscore hides a label from legends
    return (f" {plain}" if plain.startswith("_") else plain).replace("$", r"\$")
