"""Panel of the privacy cost by round, beside the budget."""

from __future__ import annotations

import math

from fl_app.report.charts.live_chart import live_chart
from fl_app.report.charts.plots import Curve
from fl_app.report.data.formats import format_number, format_short
from fl_app.report.markup import Html, element
from fl_app.report.pages.panels import panel
from fl_app.results import Run


def epsilon_panel(run: Run) -> Html | None:
    """Return the chart of both epsilons; of one where both observers learn the same."""
    models = Curve.of("models only", ((r.round, r.epsilon) for r in run.rounds))
    server = Curve.of("the server", ((r.round, r.epsilon_server) for r in run.rounds))
    if (models.x, models.y) == (server.x, server.y):
        models, server = models._replace(label="models or updates"), Curve("", [], [])
    curves = [curve for curve in (models, server) if curve.x]
    if not curves:
        return None
    budget = run.budget if run.budget is not None and 0 < run.budget < math.inf else None
    ends = ", ".join(f"{curve.label} {format_number(curve.y[-1], 2)}" for curve in curves)
    picture = live_chart(
        curves,
        alt=f"ε by round, at the end: {ends}",
        x_label="round",
        show=format_short,
        level=None if budget is None else ("budget", budget),
        may_be_log=True,
    )
    per = f" of one {run.totals.epsilon_unit}" if run.totals.epsilon_unit else ""
    return panel("Privacy spent", picture, _words(per, budget, server))


def _words(per: str, budget: float | None, server: Curve) -> Html:
    words = f"ε{per} after each round; lower means less is learnt."
    passed = budget is not None and any(value > budget for value in server.y)
    return element(
        "p",
        f"{words} The budget does not limit ε against the server." if passed else words,
        class_="muted",
        data_fact="epsilon-by-round",
        data_value="server above budget" if passed else None,
    )
