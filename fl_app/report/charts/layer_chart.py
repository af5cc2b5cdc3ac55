"""Chart of chosen coordinates by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.ticker import NullLocator

from fl_app.report.charts.canvas import (
    LIGHT,
    Theme,
    blank_chart,
    png_bytes,
    shorten,
    tick_writer,
    write_percent,
)


def plot_layers(chosen: Mapping[str, int], sizes: Mapping[str, int], theme: Theme = LIGHT) -> bytes:
    """Draw how large a share of each layer was chosen, beside how many coordinates that are.

    Shares are on a logarithmic scale if they differ much; the dashed line is the
    share of the whole model, where each layer would be if chance had chosen.
    """
    if not sizes or set(chosen) != set(sizes):
        raise ValueError(f"plot_layers: expected counts of {sorted(sizes)}, got {sorted(chosen)}")
    for name, size in sizes.items():
        if not 0 <= chosen[name] <= size or size < 1:
            raise ValueError(f"plot_layers: {name}: expected 0 to {size} coordinates, got {chosen[name]}")
    shares = [chosen[name] / sizes[name] for name in sizes]
    whole = sum(chosen.values()) / sum(sizes.values())
    figure, axes = blank_chart(theme, width=4.8, height=1.1 + 0.34 * len(sizes))
    places = range(len(sizes))
    axes.barh(places, shares, height=0.62, color=theme.series[0])
    axes.axvline(whole, color=theme.muted, linestyle=(0, (4, 3)), linewidth=1.4)
    positive = [share for share in shares if share > 0]
    top = max(shares)
    if positive and top > 12 * min(positive):
        left = min(min(positive), whole) / 3
        axes.set_xscale("log")
        axes.set_xlim(left, top * (top / left) ** 0.4)  # room for the numbers beside the bars
        powers = range(math.floor(math.log10(left)), 1)
        axes.set_xticks([10.0**power for power in powers if 10.0**power >= left])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max(top, whole) * 1.6 or 1)
        # there is no share above the whole layer
        axes.set_xticks([tick for tick in axes.get_xticks() if 0 <= tick <= 1])
    for place, name, share in zip(places, sizes, shares, strict=True):
        axes.annotate(
            f"{chosen[name]:,} of {sizes[name]:,}",
            (max(share, axes.get_xlim()[0]), place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=theme.muted,
            bbox={"facecolor": theme.ground, "edgecolor": "none", "pad": 1.5},
        )
    axes.grid(visible=False)
    axes.invert_yaxis()  # the first layer on top
    axes.set_yticks(list(places), [shorten(name, 28) for name in sizes])
    axes.xaxis.set_major_formatter(tick_writer(write_percent))
    axes.set(xlabel=f"share of a layer (dashed: whole model, {write_percent(whole)})")
    return png_bytes(figure)


def save_layers(chosen: Mapping[str, int], sizes: Mapping[str, int], path: Path | str) -> None:
    """Write the chart to a file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(plot_layers(chosen, sizes))
