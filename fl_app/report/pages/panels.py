"""Panels with a chart that follows the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fl_app.report.charts.canvas import DARK, LIGHT, Theme
from fl_app.report.charts.tiles import png_uri
from fl_app.report.markup import Child, Html, element


def panel(title: str, *children: Child) -> Html:
    """Return a titled box."""
    return element("section", element("h3", title), *children, class_="panel")


def themed_image(draw: Callable[[Theme], bytes], alt: str, *, copy: Path | None = None) -> Html:
    """Return a chart in the reader's light or dark mode; ``copy`` also keeps the light one as a file."""
    light = draw(LIGHT)
    if copy is not None:
        copy.write_bytes(light)
    return element(
        "picture",
        element("source", media="(prefers-color-scheme: dark)", srcset=png_uri(draw(DARK))),
        element("img", class_="chart", src=png_uri(light), alt=alt),
    )
