"""Report section on the server: its messages, its knowledge, and the bounds on it."""

from __future__ import annotations

import math

from safetensors import SafetensorError, safe_open

from fl_app.report.charts.layer_chart import plot_layers
from fl_app.report.charts.tiles import png_uri
from fl_app.report.data.formats import format_count, format_number, format_short
from fl_app.report.markup import Child, Html, element
from fl_app.report.pages.panels import panel, themed_image
from fl_app.results import Exchange, Privacy, Run
from fl_app.storage.plain_folder import read_small

_SCHEMES = {
    "FLStd": "That is its whole update (FL-STD).",
    "FLBasic": "They are random coordinates, drawn in every round from a public seed; "
    "the others are not trained in that round (FL-BASIC).",
    "FLCS": "They are random measurements of its whole update, made with a public seed; the "
    "server searches for a sparse update that explains their mean (FL-CS).",
    "FLTop": "They are the same coordinates T in every round, chosen on public samples before the first "
    "one; the others never change. The choice therefore says nothing about a client's data (FL-TOP).",
}
_VOTED = (
    "They are the same coordinates T in every round but for round {round}, in which clients voted on them; "
    "the others never change. The votes are charged like any other round (FL-TOP)."
)
_STOPPED = "stopped before round"
"""Beginning of the note of a run that stopped because of its budget."""


def server_section(run: Run) -> list[Child]:
    """Return the server's knowledge and its limits; empty if the run does not record them."""
    if run.exchange is None and run.privacy is None and run.secure_aggregation is None:
        return []
    return [
        element("h2", "What the server can learn", data_fact="server"),
        element(
            "div",
            _sent_panel(run, run.exchange) if run.exchange else None,
            element("div", _secure_panel(run), _privacy_panel(run), class_="stack"),
            class_="charts loose",
        ),
    ]


def _sent_panel(run: Run, exchange: Exchange) -> Html:
    values, of = exchange.values, exchange.of
    share = f", or {100 * values / of:.3g} %" if values and of and math.isfinite(values / of) else ""
    words = f"{format_count(values)} of the model's {format_count(of)} values{share}."
    chart = _layer_chart(run, exchange)
    return panel(
        "What each client sends in a round",
        element("p", words, " ", _scheme(exchange), data_fact="sent", data_value=exchange.scheme),
        chart,
        element("p", "Where T falls, layer by layer.", class_="muted") if chart else None,
        element("p", "SHA-256 of T: ", element("code", exchange.hash), class_="muted")
        if exchange.hash
        else None,
    )


def _scheme(exchange: Exchange) -> str | None:
    if exchange.voted_in is not None:
        return _VOTED.format(round=exchange.voted_in)
    return _SCHEMES.get(exchange.scheme or "", exchange.scheme)


def _layer_chart(run: Run, exchange: Exchange) -> Html | None:
    chosen, sizes = exchange.by_layer, _layer_sizes(run, exchange)
    alt = "share of each layer that is in T"
    if sizes and all(0 <= chosen[name] <= size for name, size in sizes.items()):
        return themed_image(lambda theme: plot_layers(chosen, sizes, theme), alt)
    picture = run.file(exchange.picture)
    if picture is None or not picture.is_file():
        return None
    return element("img", class_="chart paper", src=png_uri(read_small(picture)), alt=alt)


def _layer_sizes(run: Run, exchange: Exchange) -> dict[str, int]:
    """Return how many values each tensor has, as the file of the model says; nothing if one is not there."""
    try:
        with safe_open(run.folder / "model.safetensors", framework="numpy") as model:
            return {name: math.prod(model.get_slice(name).get_shape()) for name in exchange.by_layer}
    except (OSError, SafetensorError):
        return {}  # a run that was cut short has no model


def _is_summed(run: Run) -> bool:
    return run.secure_aggregation is not None or run.choice("secagg") == "on"


def _secure_panel(run: Run) -> Html:
    title = "Secure aggregation"
    if not _is_summed(run):
        return panel(
            title,
            element(
                "p",
                element("strong", "Off."),
                " The server sees the vector of every client by itself.",
                data_fact="secure-sum",
                data_value="off",
            ),
        )
    fewest = run.secure_aggregation and run.secure_aggregation.min_clients
    quorum = f" No round starts with fewer than {fewest} of them." if fewest else ""
    against = run.secure_aggregation.against if run.secure_aggregation else None
    return panel(
        title,
        element(
            "p",
            element("strong", "On."),
            " The server learns the sum of the clients' vectors, who took part and who vanished when, but no "
            f"client's own vector.{quorum}",
            data_fact="secure-sum",
            data_value="on",
        ),
        element(
            "ul",
            [
                element("li", element("strong", f"{verdict}:"), " ", who, data_fact=verdict, data_value=value)
                for verdict, value, who in _threats(against)
            ],
        ),
        element("p", "In full: ", element("code", "docs/secure-aggregation.md"), ".", class_="muted"),
    )


def _threats(against: str | None) -> list[tuple[str, str | None, str]]:
    """Return a verdict on every adversary of secure aggregation, its name, and the reason."""
    models = {
        "honest-but-curious server": [
            (
                "Covered",
                "honest-but-curious server",
                "an honest-but-curious server, which follows the protocol and keeps all that it sees.",
            ),
            (
                "Not covered",
                "active server",
                "an active server, which breaks the rules. It could put its own keys in place of the "
                "clients' and read every vector; pinned identities (secagg.identities) prevent that.",
            ),
        ],
        "active server": [
            (
                "Covered",
                "active server",
                "an active server, which breaks the rules, together with fewer than a third of the clients. "
                "Keys are signed by pinned identities, so it can neither replace one nor invent a client.",
            ),
            (
                "Not covered",
                "active server and a third of the clients",
                "an active server together with a third of the clients or more.",
            ),
        ],
    }
    return [
        *models.get(against or "", [("Not known", None, "which server it withstands.")]),
        (
            "Never covered",
            "sums",
            "the sum itself, which can be attacked as any update can; and differences of sums, where two "
            "rounds have all clients but one in common. Noise (dp=client) is for these.",
        ),
    ]


def _privacy_panel(run: Run) -> Html | None:
    title = "Differential privacy"
    if run.privacy is None and run.totals.epsilon is not None:
        return None
    if run.privacy is None:
        seen = "sums" if _is_summed(run) else "vectors"
        return panel(
            title,
            element(
                "p",
                element("strong", "None."),
                " There is no noise: nothing bounds what can be found out from the models, or by the server "
                f"from the {seen} that it sees.",
                data_fact="privacy",
                data_value="none",
            ),
        )
    totals, privacy = run.totals, run.privacy
    replayable = privacy.replayable
    facts = [
        ("noise", privacy.mechanism, _noise_words(privacy)),
        ("clip", "learnt" if run.amount("dp", "clip") is None else "set", _clip_words(run, privacy)),
        (
            "sampling",
            "turns" if privacy.separation else run.setting("dp", "sampling"),
            _sampling_words(run, privacy),
        ),
        ("noise-source", "seed" if replayable else "operating system", _source_words(privacy)),
        ("budget", "stopped" if _stop_note(run) else "held", _budget_words(run)),
    ]
    delta = run.amount("dp", "delta")
    allowed = "" if delta is None else f" δ is {delta:g}."
    return panel(
        title,
        element(
            "p",
            f"The guarantee covers all data of one client. A smaller ε means less is learnt.{allowed}",
            data_fact="privacy",
            data_value="client",
        ),
        element(
            "ul",
            element(
                "li",
                element("strong", _epsilon(totals.epsilon)),
                _models_words(run, privacy),
                data_fact="epsilon-models",
            ),
            _measured_item(privacy),
            element(
                "li",
                element("strong", "No bound" if privacy.separation else _epsilon(totals.epsilon_server)),
                _server_words(run, privacy),
                data_fact="epsilon-server",
                data_value=None if privacy.honest is None else f"honest {privacy.honest:g}",
            ),
        ),
        element(
            "ul",
            [element("li", words, data_fact=fact, data_value=value) for fact, value, words in facts if words],
        ),
    )


def _epsilon(value: float | None) -> str:
    return f"ε = {format_number(value, 2)}" if value is not None else "ε not known"


def _measured_item(privacy: Privacy) -> Html | None:
    if privacy.epsilon_measured is None or privacy.epsilon_measured_interval is None:
        return None
    low, high = (format_number(limit, 2) for limit in privacy.epsilon_measured_interval)
    return element(
        "li",
        element("strong", _epsilon(privacy.epsilon_measured)),
        f" measured in this run ({low} to {high} with 95 % confidence): {privacy.canaries} random updates "
        "took part like clients; the final model tells them this well from random updates that did not.",
        data_fact="epsilon-measured",
        data_value=str(privacy.canaries),
    )


def _models_words(run: Run, privacy: Privacy) -> str:
    rate = run.amount("dp", "rate")
    if privacy.separation:
        return " against an observer of the models only, even one who knows who takes part in which round."
    if rate == 1:
        return " against an observer of the models only. All clients take part in every round."
    chance = "" if rate is None else f" (each client by a chance of {100 * rate:.3g} %)"
    return (
        " against an observer of the models only. This assumes that it stays secret who takes part in a "
        f"round{chance}."
    )


def _server_words(run: Run, privacy: Privacy) -> str:
    if privacy.separation:
        return " against the server: it sees every client's vector, and adds the noise itself afterwards."
    knows = " against the server, which knows who takes part: counted for the client that lost most."
    if _is_summed(run):
        return (
            f"{knows} It sees sums only, with the noise of all their clients on them.{_honest_words(privacy)}"
        )
    words = (
        f"{knows} It sees every client's vector, and on it no more than that client's own share of the noise"
    )
    sigma, expected = privacy.noise_multiplier, _expected_clients(run)
    if sigma is None or expected is None:
        return f"{words}."
    local = sigma / math.sqrt(expected)
    return (
        f"{words}: {format_short(sigma)} / √{expected:.3g} = {format_number(local, 2)} times the clipping "
        f"bound, with {expected:.3g} clients expected in a round.{_times(run)}"
    )


def _honest_words(privacy: Privacy) -> str:
    if privacy.honest is None:
        return ""
    if privacy.honest == 1:
        return " This assumes that no client tells the server its own part of the noise."
    return (
        f" This assumes that at least {100 * privacy.honest:.3g} % of the clients of a round do not tell the "
        "server their part of the noise."
    )


def _times(run: Run) -> str:
    models, server = run.totals.epsilon, run.totals.epsilon_server
    if not models or not server or math.isinf(server):
        return ""
    return f" That makes its ε {format_number(server / models, 1)} times the other one."


def _expected_clients(run: Run) -> float | None:
    rate, clients = run.amount("dp", "rate"), run.amount("dp", "clients")
    canaries = run.amount("dp", "canaries") or 0
    expected = None if rate is None or clients is None else rate * (clients + canaries)
    return expected if expected and 0 < expected < math.inf else None


def _noise_words(privacy: Privacy) -> str | None:
    if privacy.noise_multiplier is None:
        return None
    sigma = format_short(privacy.noise_multiplier)
    name = f" It is a {privacy.mechanism}." if privacy.mechanism else ""
    return f"Noise multiplier {sigma}: the standard deviation of a sum's noise over the clipping bound.{name}"


def _clip_words(run: Run, privacy: Privacy) -> str | None:
    if privacy.clip is None:
        return None
    learnt = "" if run.amount("dp", "clip") is not None else ", a bound that was learnt from public samples"
    return f"Clipping bound {format_short(privacy.clip)}: no client's vector is longer (L2 norm){learnt}."


def _sampling_words(run: Run, privacy: Privacy) -> str | None:
    turns = f"Turns: each client takes part in one of every {privacy.separation} rounds."
    drawn = (
        turns
        if privacy.separation
        else {
            "poisson": "Poisson sampling: each client is drawn independently.",
            "fixed": "Fixed sampling: a set number of clients is drawn each round.",
        }.get(run.setting("dp", "sampling") or "")
    )
    if drawn is None or privacy.adjacency is None:
        return drawn
    return f"{drawn} ε compares federations that differ by one client ({privacy.adjacency})."


def _source_words(privacy: Privacy) -> str | None:
    if privacy.replayable is None:
        return None
    if privacy.replayable:
        return "The noise can be replayed from the seed: it protects no one outside of a simulation."
    return "The noise comes from the operating system and cannot be replayed."


def _stop_note(run: Run) -> str | None:
    return next((note for note in run.notes if note.startswith(_STOPPED)), None)


def _budget_words(run: Run) -> str | None:
    stopped = _stop_note(run)
    if stopped is not None:
        return f"Training stopped at the budget: {stopped}."
    if run.budget is None:
        return None
    held = "; training did not have to stop for it" if run.status == "finished" else ""
    return f"The budget is ε = {run.budget:g} against an observer of the models only{held}."
