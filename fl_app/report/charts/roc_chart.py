"""Chart of ROC curves on logarithmic axes: few false alarms are what an attacker needs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fl_app.privacy.member_bound import member_bound
from fl_app.report.charts.canvas import LIGHT, Theme, blank_chart, png_bytes, tick_writer, write_percent
from fl_app.report.charts.plots import Curve, chart_looks, legend_below

_POINTS = 60


def plot_roc(
    curves: Sequence[Curve], least: float, promise: tuple[float, float] | None, theme: Theme = LIGHT
) -> bytes:
    """Draw hits over false alarms from the rate ``least`` on, a guess, and the bound of (epsilon, delta)."""
    figure, axes = blank_chart(theme, height=3.6 + 0.11 * len(curves))
    grid = [least ** (1 - i / (_POINTS - 1)) for i in range(_POINTS)]
    axes.plot(grid, grid, color=theme.muted, linewidth=1, label="a guess")
    if promise is not None:
        bound = [member_bound(rate, *promise) for rate in grid]
        axes.plot(grid, bound, color=theme.ink, linewidth=1.5, linestyle="--", label="most that DP allows")
    for curve, (color, _, dashes) in zip(curves, chart_looks(theme), strict=False):
        x = [max(value, least) for value in curve.x]
        y = [max(value, least) for value in curve.y]
        axes.plot(x, y, color=color, linestyle=dashes, linewidth=2, label=curve.label)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(tick_writer(write_percent))
        axis.set_minor_formatter(tick_writer(lambda _: ""))
    axes.set(xlabel="false alarms: strangers taken for members", ylabel="members found")
    legend_below(figure, axes, theme)
    return png_bytes(figure)


def least_rate(strangers: int) -> float:
    """Return the power of ten from which the curve of that many strangers is drawn."""
    return 10.0 ** -max(1, min(6, math.ceil(math.log10(max(strangers, 1)))))
