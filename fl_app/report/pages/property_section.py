"""Report section on properties: what an update tells of its samples as a whole."""

from __future__ import annotations

from fl_app.report.data.formats import DASH, format_percent
from fl_app.report.markup import Child, Html, element, table
from fl_app.results import PropertyInference, Run


def property_section(run: Run) -> list[Child]:
    """Return how often each attack on a property was right; empty without one."""
    rows = run.properties or []
    if not rows:
        return []
    return [
        element("h2", "What the updates told of their samples as a whole"),
        element(
            "p",
            "A classifier learned from updates of public samples. The baseline gives one answer always.",
        ),
        table(
            ["property", "attack", "right", "baseline", "on its own examples", "updates"],
            [_row(row) for row in rows],
            words=2,
        ),
        *(_verdict(row) for row in rows),
    ]


def _row(row: PropertyInference) -> list[str]:
    form = "knows the defense" if row.adaptive else "does not know the defense"
    right = f"{format_percent(row.rate)} ({format_percent(row.rate_low)}–{format_percent(row.rate_high)})"
    held = f"{row.holds}: {row.trait}"
    if row.gave_up is not None or row.rate is None:
        right = DASH
    return [held, form, right, format_percent(row.baseline), format_percent(row.expected), str(row.asked)]


def _verdict(row: PropertyInference) -> Html:
    value = {True: "tells", False: "guesses", None: "unknown"}[row.tells]
    if row.gave_up is not None:
        return element("p", f"It gave up: {row.gave_up}.", data_fact="property", data_value="gave-up")
    said = {
        "tells": "The updates tell the property",
        "guesses": "The updates do not tell the property better than the baseline, as far as these show",
        "unknown": "Not measured",
    }[value]
    notes = "".join(f" {note}." for note in row.notes)
    return element("p", f"{said}.{notes}", data_fact="property", data_value=value)
