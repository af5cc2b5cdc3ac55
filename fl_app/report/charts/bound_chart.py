"""Chart of what attacks found, each in the corridor below its bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.report.charts.canvas import (
    LIGHT,
    Theme,
    blank_chart,
    png_bytes,
    shorten,
    tick_writer,
    write_percent,
)


class Corridor(NamedTuple):
    """The range in which the share of images that one attack finds must lie; all in [0, 1]."""

    label: str
    bound: float
    prior: float | None
    found: float | None


def plot_corridors(corridors: Sequence[Corridor], theme: Theme = LIGHT) -> bytes:
    """Draw a bar up to each bound, a tick at the prior, and a dot at the share that was found."""
    figure, axes = blank_chart(theme, height=1.1 + 0.32 * len(corridors))
    places = range(len(corridors))
    axes.barh(places, [one.bound for one in corridors], color=theme.series[0], alpha=0.25, height=0.6)
    for place, one in zip(places, corridors, strict=True):
        if one.prior is not None:
            axes.plot([one.prior] * 2, [place - 0.3, place + 0.3], color=theme.muted, linewidth=1.5)
        if one.found is not None:
            color = theme.series[1 if one.found > one.bound else 0]
            axes.plot(one.found, place, "o", color=color, clip_on=False)
    axes.set_yticks(places, [shorten(one.label, 34) for one in corridors])
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(tick_writer(write_percent))
    axes.set(xlabel="images recovered")
    return png_bytes(figure)
