"""First answer of every page: would this identify somebody?"""

from __future__ import annotations

from fl_app.report.data.formats import format_number, format_percent
from fl_app.report.data.update_kinds import as_sent
from fl_app.report.markup import Html, element
from fl_app.results import Membership, Run


def identification(run: Run) -> Html:
    """Return whether what was sent identifies somebody, by what this run measured."""
    value, said = _answer(run)
    return element(
        "p",
        element("strong", "Would this identify somebody? "),
        said,
        class_="lead",
        data_fact="identifies",
        data_value=value,
    )


def identified(run: Run) -> tuple[int, int]:
    """Return how many attacked samples were identified among the candidates, by any attack on what was sent.

    The second number is how many were asked about.
    """
    found: dict[tuple[object, ...], bool] = {}
    for attack in as_sent(run):
        for place, right in enumerate(attack.identified or []):
            if right is not None:
                key = attack.round, attack.client, place
                found[key] = found.get(key, False) or right
    return sum(found.values()), len(found)


def _answer(run: Run) -> tuple[str, str]:
    right, asked = identified(run)
    strongest = max(
        (row for row in run.membership or [] if row.best_auc is not None),
        key=lambda row: row.best_auc or 0.0,
        default=None,
    )
    parts: list[str] = []
    if asked:
        among = max((attack.candidates or 0 for attack in as_sent(run)), default=0)
        parts.append(
            f"the rebuilt sample points to the right one among {among} candidates for {right} of {asked}"
            + (f" (a guess: {format_percent(1 / among)})" if among else "")
        )
    if strongest is not None:
        parts.append(_membership(strongest))
    if not parts:
        return "not measured", "Not measured: this run compares no candidates."
    # one right answer among a hundred may be luck; two of few are not
    yes = (asked and right > max(1, asked // 20)) or (asked == right == 1)
    yes = bool(yes or (strongest is not None and strongest.tells_members))
    said = "; ".join(parts)
    start = "Yes" if yes else "Not by these attacks"
    return ("yes" if yes else "no"), f"{start}: {said}."


def _membership(row: Membership) -> str:
    points = [
        point
        for point in (row.statistics[row.best].points if row.best in row.statistics else [])
        if point.tpr is not None and point.fpr is not None
    ]
    at = (
        f", finding {format_percent(points[0].tpr)} of the members at {format_percent(points[0].fpr)} "
        "false alarms"
        if points
        else ""
    )
    verb = "tells" if row.tells_members else "does not tell"
    return f"an attacker {verb} members from strangers (AUC {format_number(row.best_auc, 2)}{at})"
