"""Report section on ε: whose data each one protects, against whom, in one sentence each."""

from __future__ import annotations

import math

from fl_app.report.data.formats import format_number, format_short
from fl_app.report.markup import Child, element
from fl_app.results import Run

_LARGEST = 20.0
"""The ε from which on a factor is no longer spelled out."""
_UNITS = {"client": "all data of one client", "record": "one record of one client"}


def protection_section(run: Run) -> list[Child]:
    """Return a sentence for each ε, and which level of protection is not there; empty without any ε."""
    models, server = run.totals.epsilon, run.totals.epsilon_server
    if models is None and server is None:
        return []
    unit = run.totals.epsilon_unit or "record"
    absence = f"add or remove one {unit}"
    if unit == "client":
        adjacency = absence if run.privacy is None else run.privacy.adjacency or absence
        sentences = [
            ("models", models, "anyone who sees the models only", adjacency),
            # the server knows who takes part: a client is compared with its absence
            ("server", server, "the server, which also sees what clients send", absence),
        ]
    else:
        sentences = [("updates", models, "anyone who sees updates or models, the server included", absence)]
    return [
        element("h2", "What each ε protects"),
        element(
            "ul",
            [
                element(
                    "li",
                    _sentence(run, unit, epsilon, observer, adjacency),
                    data_fact=f"protects-{unit}-{fact}",
                    data_value=adjacency,
                )
                for fact, epsilon, observer, adjacency in sentences
                if epsilon is not None
            ],
            _unprotected(run),
        ),
        _in_force(unit),
    ]


def _sentence(run: Run, unit: str, epsilon: float, observer: str, adjacency: str) -> str:
    delta = run.amount("dp" if unit == "client" else "defense", "delta")
    except_for = "" if delta is None else f", except with a chance of δ = {delta:g}"
    change = (
        "replaced by other data" if adjacency.startswith("replace") else "left out of the training altogether"
    )
    return (
        f"ε = {format_number(epsilon, 2)}, {unit} level: if {_UNITS.get(unit, f'one {unit}')} were {change} "
        f"({adjacency}), any conclusion that {observer} might draw would be at most {_factor(epsilon)} "
        f"as likely or as unlikely as it is now{except_for}."
    )


def _unprotected(run: Run) -> Child:
    """Say it if the server sees vectors without noise."""
    if run.privacy is None or not run.privacy.separation:
        return None
    return element(
        "li",
        "The server sees what clients send before it adds noise: nothing here protects from the server.",
        data_fact="protects-client-server",
        data_value="none",
    )


def _factor(epsilon: float) -> str:
    if not epsilon <= _LARGEST:
        return "e^ε times (so many that it is no protection)"
    return f"e^ε = {format_short(math.exp(epsilon))} times"


def _in_force(unit: str) -> Child:
    """Say which level is in force: the settings allow one at a time."""
    if unit == "client":
        words = (
            "There is no further noise for single records: a record is part of its client's data, and the "
            "same ε covers it."
        )
    else:
        words = (
            "Clients as a whole are not protected: what many records of one client have in common, and "
            "that the client took part, may be learnt."
        )
    return element(
        "p",
        words,
        data_fact="protection-level",
        data_value="client and record" if unit == "client" else "record only",
    )
