"""Report section on ε: whose data each one protects, against whom, in one sentence each."""

from __future__ import annotations

import math

from fl_app.report.data.formats import format_number, format_short
from fl_app.report.markup import Child, element
from fl_app.results import Run

_LARGEST = 20.0
"""The ε from which on a factor is no longer spelled out."""
_EVERYBODY = "anyone who sees updates or models, the server included"
_UNITS = {"client": "all data of one client", "record": "one record of one client"}


def protection_section(run: Run) -> list[Child]:
    """Return a sentence for each ε, and which level of protection is not there; empty without any ε."""
    models, server = run.totals.epsilon, run.totals.epsilon_server
    if models is None and server is None:
        return []
    unit = run.totals.epsilon_unit or "record"
    absence = f"add or remove one {unit}"
    stated = None if run.privacy is None else run.privacy.adjacency
    adjacency = run.totals.epsilon_adjacency or stated or absence
    if unit == "client":
        sentences = [
            ("client", "models", models, "anyone who sees the models only", adjacency),
            # the server knows who takes part: a client is compared with its absence
            ("client", "server", server, "the server, which also sees what clients send", absence),
        ]
    else:
        sentences = [(unit, "updates", models, _EVERYBODY, adjacency)]
    if run.privacy is not None and run.privacy.records is not None:
        of_records = run.privacy.records.adjacency or "add or remove one record"
        sentences.append(("record", "updates", run.totals.epsilon_record, _EVERYBODY, of_records))
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
                for unit, fact, epsilon, observer, adjacency in sentences
                if epsilon is not None
            ],
            _unprotected(run),
        ),
        _in_force(run, unit, adjacency),
    ]


def _sentence(run: Run, unit: str, epsilon: float, observer: str, adjacency: str) -> str:
    delta = _delta(run, unit)
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


def _in_force(run: Run, unit: str, adjacency: str) -> Child:
    """Say which levels are in force."""
    if unit != "client":
        level, words = (
            "record only",
            "Clients as a whole are not protected: what many records of one client have in common, and "
            "that the client took part, may be learnt.",
        )
    elif run.privacy is not None and run.privacy.records is not None:
        level, words = (
            "client and record",
            "Clients as a whole and single records have noise of their own; each sentence holds by itself.",
        )
    else:
        level, words = "client only", _of_records(run, adjacency)
    return element("p", words, data_fact="protection-level", data_value=level)


def _of_records(run: Run, adjacency: str) -> str:
    """Say what the protection of clients comes to for one of their records."""
    words = "There is no further noise for single records."
    epsilon, delta = run.totals.epsilon, _delta(run, "client")
    if adjacency.startswith("replace"):
        return f"{words} A client with one record changed is a client with other data: the same ε covers it."
    if epsilon is None or delta is None or not 2 * epsilon <= _LARGEST:
        return f"{words} One record changed counts as one client removed and another one added: twice the ε."
    return (
        f"{words} One record changed counts as one client removed and another one added: against anyone who "
        f"sees the models only, ε = {format_number(2 * epsilon, 2)} with "
        f"δ = {format_short((1 + math.exp(epsilon)) * delta)}."
    )


def _delta(run: Run, unit: str) -> float | None:
    if unit == "client":
        return run.amount("dp", "delta")
    if run.privacy is not None and run.privacy.records is not None:
        return run.privacy.records.delta
    return run.amount("defense", "delta")
