"""Report section on bounds: the most that any attack could recover, beside what was recovered."""

from __future__ import annotations

import math

from fl_app.report.charts.bound_chart import Corridor, plot_corridors
from fl_app.report.data.formats import DASH, format_count, format_percent, format_short
from fl_app.report.data.update_kinds import update_words
from fl_app.report.markup import Child, Html, element, table
from fl_app.report.pages.panels import panel, themed_image
from fl_app.results import Attack, Recovery, Run

_SHOWN = 12
"""Corridors in the chart; the table has all."""


def bound_section(run: Run) -> list[Child]:
    """Return the bound beside each attack on noisy updates; empty without differential privacy."""
    attacks = [one for one in run.attacks if one.bound is not None or one.bound_note is not None]
    if not attacks:
        return []
    bounded = [one for one in attacks if one.bound is not None and math.isfinite(one.bound)]
    return [
        element("h2", "The most that any attack could recover"),
        _verdict(bounded),
        None if run.recovery is None or not bounded else _criterion(run.recovery),
        _chart(run, bounded),
        table(
            ["attack", "update", "observer", "found", "bound", "by guessing", "round", "client"],
            [_row(run, attack) for attack in attacks],
            words=3,
        ),
    ]


def _verdict(bounded: list[Attack]) -> Html:
    above = [one for one in bounded if one.exceeds_bound]
    if not bounded:
        words, value = "No bound was computed for these attacks.", "none"
    elif above:
        words = (
            f"{len(above)} of {len(bounded)} attacks found more than the noise should allow. A single image "
            "may be luck; otherwise the noise is not what it is said to be."
        )
        value = "exceeded"
    else:
        words = (
            "The noise bounds the share of images that any attack on the same messages can expect to "
            f"recover, known or not yet known. All {len(bounded)} attacks stayed within their bound."
        )
        value = "kept"
    return element("p", words, data_fact="reconstruction-bound", data_value=value)


def _criterion(recovery: Recovery) -> Html:
    return element(
        "p",
        f"An image is recovered if its mean squared error is below {format_short(recovery.mse_below)}. "
        "“By guessing” is the chance to recover it without any message: the largest share of "
        f"{format_count(recovery.candidates)} test images that one guess would recover (of one class, if the "
        "attacker was told the class), times the number of images that the attack named. The bound counts "
        "all messages of the whole run, and an attacker who knows all other data.",
        data_fact="reconstruction-prior",
        data_value=recovery.unit,
    )


def _chart(run: Run, bounded: list[Attack]) -> Html | None:
    # the fullest corridors first
    ranked = sorted(bounded, key=lambda one: (one.found or 0.0) - (one.bound or 0.0), reverse=True)
    corridors = [
        Corridor(
            f"{one.name}, {_whose(one)}, round {_number(one.round)}",
            _share(one.bound) or 0.0,
            _share(one.bound_prior),
            _share(one.found),
        )
        for one in ranked[:_SHOWN]
    ]
    if not corridors:
        return None
    picture = themed_image(
        lambda theme: plot_corridors(corridors, theme),
        f"images recovered and bounds of {len(corridors)} attacks",
    )
    left = len(bounded) - len(corridors)
    more = element("p", f"{left} more are in the table.", class_="muted") if left else None
    return element(
        "div", panel("Found (dot), by guessing (tick), bound (bar)", picture, more), class_="charts"
    )


def _row(run: Run, attack: Attack) -> list[Child]:
    state = "none" if attack.bound is None else "exceeded" if attack.exceeds_bound else "kept"
    bound: Child = attack.bound_note or DASH if attack.bound is None else format_percent(attack.bound)
    return [
        f"{attack.name} (adaptive)" if attack.adaptive else attack.name,
        element("span", update_words(run, attack), class_="phrase"),
        "the server" if attack.participant is None else f"client {attack.participant}, from models",
        format_percent(attack.found),
        element("span", bound, data_bound=state),
        format_percent(attack.bound_prior),
        _number(attack.round),
        _whose(attack),
    ]


def _whose(attack: Attack) -> str:
    return "sum" if attack.sender is None else f"client {attack.sender}"


def _number(value: int | None) -> str:
    return DASH if value is None else str(value)


def _share(value: float | None) -> float | None:
    """Return a share that can be drawn: a file may say anything."""
    return None if value is None or math.isnan(value) else min(1.0, max(0.0, value))
