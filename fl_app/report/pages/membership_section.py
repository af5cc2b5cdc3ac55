"""Report section on membership: can somebody tell whether a person's record was trained on?"""

from __future__ import annotations

from fl_app.report.charts.plots import Curve
from fl_app.report.charts.roc_chart import least_rate, plot_roc
from fl_app.report.data.formats import DASH, format_number, format_percent, format_short
from fl_app.report.markup import Child, Html, element, table
from fl_app.report.pages.panels import panel, themed_image
from fl_app.results import MemberPoint, Membership, Run, Statistic

_OBSERVERS = {
    "server": "the server, from every update",
    "participant": "a participant, from the models that it gets",
    "final": "anybody who has the final model",
}
_NAMES = {
    "loss": "loss",
    "loss_drop": "drop of the loss",
    "alignment": "gradient alignment",
    "centred_alignment": "alignment, centred",
    "decomposition": "decomposition of updates",
    "lira": "LiRA",
    "rmia": "RMIA",
}


def membership_section(run: Run) -> list[Child]:
    """Return what each attack on membership measured; empty without one."""
    rows = run.membership or []
    if not rows:
        return []
    return [
        element("h2", "Whether a person was in the data"),
        element(
            "p",
            "A coin decided for each candidate whether its client trained on it. The attacker sorts members "
            "from strangers. One half of the candidates chooses thresholds and the best statistic, the other "
            "half reports; intervals are of 95 %. A guess finds as many members as it raises false alarms.",
        ),
        *(_attack(run, row) for row in rows),
    ]


def title_of(row: Membership) -> str:
    """Return the attack's form and viewpoint in words."""
    form = ", active" if row.active else ""
    form += ", knows the defense" if row.adaptive else ""
    return f"{row.attack}{form}: {_OBSERVERS.get(row.viewpoint, row.viewpoint)}"


def _attack(run: Run, row: Membership) -> list[Child]:
    if row.gave_up is not None or not row.statistics:
        return [
            element("h3", title_of(row)),
            element("p", f"It gave up: {row.gave_up or 'no statistic'}.", data_fact="membership-gave-up"),
        ]
    rates = sorted({point.rate for one in row.statistics.values() for point in one.points}, reverse=True)
    return [
        element("h3", title_of(row)),
        _verdict(row),
        _promise(row),
        table(
            ["statistic", "AUC", *(f"found at {format_short(100 * rate)} % alarms" for rate in rates)],
            [_row(name, one, rates) for name, one in row.statistics.items()],
            words=1,
        ),
        _chart(row),
        element("ul", [element("li", note) for note in row.notes]) if row.notes else None,
    ]


def _verdict(row: Membership) -> Html:
    value = {True: "tells", False: "guesses", None: "unknown"}[row.tells_members]
    said = {
        "tells": "It tells members from strangers",
        "guesses": "It does no better than a guess, as far as this many candidates can show",
        "unknown": "It was not measured",
    }[value]
    return element(
        "p",
        f"{said}: by {_NAMES.get(row.best or '', row.best or DASH)}, AUC "
        f"{_interval(row.best_auc, row.best_auc_low, row.best_auc_high)} on {row.reporting_members} members "
        f"and {row.reporting_strangers} strangers of {len(row.clients)} client(s).",
        data_fact="membership",
        data_value=value,
    )


def _promise(row: Membership) -> Html | None:
    if row.epsilon is None:
        return None
    value = "exceeded" if row.exceeds_bound else "kept"
    said = "A measured point lies above" if row.exceeds_bound else "All measured points lie within"
    return element(
        "p",
        f"{said} what ε = {format_number(row.epsilon, 2)} allows.",
        data_fact="membership-bound",
        data_value=value,
    )


def _row(name: str, one: Statistic, rates: list[float]) -> list[str]:
    points = {point.rate: point for point in one.points}
    cells = [_point(points.get(rate)) for rate in rates]
    return [_NAMES.get(name, name), _interval(one.auc, one.auc_low, one.auc_high), *cells]


def _point(point: MemberPoint | None) -> str:
    if point is None or point.tpr is None:
        return "too few candidates"
    return f"{format_percent(point.tpr)} ({format_percent(point.tpr_low)}–{format_percent(point.tpr_high)})"


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return f"{format_number(value, 3)} ({format_number(low, 3)}–{format_number(high, 3)})"


def _chart(row: Membership) -> Html | None:
    curves = []
    for name, one in row.statistics.items():
        corners = [c for c in one.roc if len(c) == 2 and all(0 <= value <= 1 for value in c)]
        if corners:
            curves.append(
                Curve(_NAMES.get(name, name[:30]), [c[0] for c in corners], [c[1] for c in corners])
            )
    if not curves:
        return None
    picture = themed_image(
        lambda theme: plot_roc(curves, least_rate(row.strangers), row.promise, theme),
        "members found over false alarms, on logarithmic axes",
    )
    return element("div", panel("Members found over false alarms", picture), class_="figures")
