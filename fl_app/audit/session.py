"""One audit from start to end: run, understand, attack, check the claims, watch the exits."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

from fl_app.audit.arrays import Name
from fl_app.audit.audited_grid import AuditedClient, AuditedGrid, EnoughRounds, QuorumError, answer_or_error
from fl_app.audit.bundle import opened
from fl_app.audit.channels import Reading, read_channels
from fl_app.audit.claims import check_claims
from fl_app.audit.declared import Declared, declarations, watched_opacus
from fl_app.audit.exits import ExitReport, exit_findings, hidden_picture, measure_exits
from fl_app.audit.findings import sorted_findings
from fl_app.audit.grade import grade_of
from fl_app.audit.hub import local_hub
from fl_app.audit.ladder import Ladder, attack_update
from fl_app.audit.low_digits import digit_findings
from fl_app.audit.malicious import attack_as_server
from fl_app.audit.options import AuditOptions, Mod
from fl_app.audit.planted_files import planted_files
from fl_app.audit.planting import Plant, planted
from fl_app.audit.probe import Probe
from fl_app.audit.recorder import copied, recording, watched_torch
from fl_app.audit.report import AuditReport
from fl_app.audit.sandbox import captured_output, fresh_app, sandbox
from fl_app.audit.tape import Tape
from fl_app.audit.traffic import Exchange, Traffic
from fl_app.audit.understanding import Understanding, understand
from fl_app.audit.what_if import Variant, compare
from fl_app.console.progress import track
from fl_app.flower import AppFolder, fuse
from fl_app.flower.copies import copy_context, copy_message
from fl_app.types import Trace

_MOST_FORMS = 3
"""Forms of replies to one kind of message that are asked for again with planted bits."""
FLOWERS_SUPERNODES = 2
"""Clients of a simulation where neither the user nor the app says how many."""


@dataclass
class Recorded:
    """One run of an app, watched."""

    traffic: Traffic
    tapes: dict[int, Tape]
    """Tape of each exchange, by its number."""
    declared: Declared
    client: ClientApp
    mods: Sequence[Mod]
    failure: str
    """Error with which the server ended; "" if it did not."""


def audit_app(
    folder: Path,
    options: AuditOptions | None = None,
    *,
    log: TextIO | None = None,
    defenses: Mapping[str, Sequence[Mod]] | None = None,
) -> AuditReport:
    """Audit the Flower app at ``folder``, or in a bundle of ``flwr build``; its prints go to ``log``.

    ``defenses`` are lists of mods by name; each is put around the app's client in a run of its own.
    """
    chosen = options or AuditOptions()
    begun = time.monotonic()
    with ExitStack() as stack:
        if log is not None:
            stack.enter_context(captured_output(log))
        place, bundle = stack.enter_context(opened(folder))
        app = stack.enter_context(sandbox(place))
        audit = _Audit(app, chosen)
        report = audit.run()
        report.bundle = bundle
        if defenses:
            report.variants = audit.what_if(defenses)
        report.seconds = time.monotonic() - begun
        return report


class _Audit:
    """State of one audit."""

    def __init__(self, app: AppFolder, options: AuditOptions) -> None:
        self._app, self._options = app, options
        self._nodes = options.supernodes or _own_supernodes(app.root) or FLOWERS_SUPERNODES
        self._config = fuse(app.config, options.run_config)

    def run(self) -> AuditReport:
        """Run every part."""
        options = self._options
        with self._watched(options.mods) as recorded:
            claims, findings = check_claims(recorded.declared, recorded.traffic)
            found = self._understand(recorded)
            ladder = Ladder()
            if found.proven:
                traces = _traces(found)
                ladder = attack_update(found, options.attack_seconds, traces)
                self._attack_as_server(found, recorded, ladder)
        update = {*found.names, *found.order_names, *found.beside}
        exits, untested = self._exits(recorded.traffic, update, known=bool(found.names))
        picture = None
        if exits is not None:
            findings += exit_findings(exits)
            picture = self._picture(exits, recorded.traffic, update)
        findings = sorted_findings([*findings, *digit_findings(found.other_digits)])
        if found.proven and found.update and not ladder.results:
            found.reason = "no attack of this audit fits its model"
        grade = None if found.reason else grade_of(ladder.results, findings)
        return AuditReport(
            app=self._app.root.name,
            rounds=len(recorded.traffic.cohorts()),
            supernodes=self._nodes,
            understood=found.proven,
            reason=found.reason,
            tried=found.tried,
            error=found.error,
            facts=found.facts | _settings(recorded),
            ladder=ladder,
            claims=claims,
            exits=exits,
            findings=findings,
            grade=grade,
            traffic=_traffic(recorded.traffic),
            untested=[*untested, *_failed(recorded), *_never_tested()],
            seconds=0.0,
            picture=picture,
        )

    def what_if(self, defenses: Mapping[str, Sequence[Mod]]) -> list[Variant]:
        """Run the app with each list of mods."""

        def run(mods: Sequence[Mod]) -> tuple[Traffic, float | None]:
            with self._watched((*mods, *self._options.mods)) as recorded:
                found = self._understand(recorded)
                if not found.proven:
                    return recorded.traffic, None
                ladder = attack_update(found, self._options.attack_seconds, _traces(found))
                self._attack_as_server(found, recorded, ladder)
            scores = [
                r.score or 0.0 for r in ladder.results if r.situation != "one sample" and r.target != "labels"
            ]
            return recorded.traffic, max(scores, default=None)

        return compare(defenses, run)

    @contextmanager
    def _watched(self, mods: Sequence[Mod]) -> Iterator[Recorded]:
        """Run the app; while the context lasts, its client can be called again."""
        options, probe = self._options, Probe()
        traffic, tapes = Traffic(), dict[int, Tape]()
        with ExitStack() as stack:
            stack.enter_context(local_hub(options.data))
            stack.enter_context(watched_torch())
            declared = stack.enter_context(declarations(self._app.root, probe, self._nodes, options.rounds))
            server, client = stack.enter_context(fresh_app(self._app))
            stack.enter_context(watched_opacus(declared))
            recorder = _Recording(client, declared, tapes, traffic)
            bar = stack.enter_context(track(f"{options.rounds} rounds of the app", options.rounds))
            audited = AuditedClient(
                recorder,
                mods,
                traffic,
                probe,
                options.seed,
                lambda number, who, kind: bar(number - 1, f"client {who}: {kind}"),
            )
            audited.limit = options.rounds
            grid = AuditedGrid(audited, self._nodes, self._config)
            context = Context(1, 0, {}, RecordDict(), dict(self._config))
            failure = _run_server(server, grid, context)
            if failure and not traffic.of("train"):
                said = _first_error(traffic)
                raise ValueError(f"the app's server failed before any client trained: {failure}{said}")
            yield Recorded(traffic, tapes, declared, client, mods, failure)

    def _understand(self, recorded: Recorded) -> Understanding:
        traffic = recorded.traffic
        trained = traffic.of("train")
        if not trained:
            said = _first_error(traffic)
            kinds = sorted({exchange.order.metadata.message_type for exchange in traffic.exchanges})
            raise ValueError(
                f"the app trained no client in {self._options.rounds} rounds "
                f"(messages: {', '.join(kinds) or 'none'}){said}"
            )
        number = next(
            (i for i, tape in recorded.tapes.items() if tape.steps), traffic.exchanges.index(trained[0])
        )
        first, tape = traffic.exchanges[number], recorded.tapes.get(number, Tape())
        if first.failed:
            raise ValueError(f"the first client that trained failed: {first.reply.error.reason}")
        if self._options.model is not None:
            _use_model(tape, self._options.model)
        found = understand(first, tape)
        return found

    def _attack_as_server(self, found: Understanding, recorded: Recorded, ladder: Ladder) -> None:
        exchange = found.exchange
        assert exchange is not None

        def call(message: Message) -> tuple[Exchange, Tape]:
            context = exchange.context
            fresh = copy_context(context)
            with recording() as recorder:
                reply = answer_or_error(recorded.client, recorded.mods, message, fresh, exchange.seed)
            return replace(exchange, order=message, reply=reply, inner=None), recorder.finish()

        classes = next((r.details.get("classes") for r in ladder.results if "classes" in r.details), None)
        attack_as_server(found, classes, call, ladder)

    def _exits(
        self, traffic: Traffic, update: set[tuple[str, str]], *, known: bool
    ) -> tuple[ExitReport | None, list[str]]:
        """Let a client answer the same orders with planted bits, several times."""
        options = self._options
        if not options.planted_runs:
            return None, ["Exits: switched off"]
        orders = _orders(traffic, update)
        begun = time.monotonic()
        readings: list[dict[str, Reading]] = []
        bits: list[np.ndarray] = []
        places: set[str] = set()
        if not known and orders:
            # without a model, the arrays of the first record with arrays are taken for the update
            update = {
                p
                for e in orders
                for n, r in e.reply.content.array_records.items()
                for p in [(n, k) for k in r]
            }
        again: dict[str, Reading] = {}
        with track("planted bits", options.planted_runs + 1) as advance:
            for number in range(options.planted_runs):
                plant = Plant.draw(options.seed + number)
                reading = self._planted(orders, plant, update)
                if number == 0:
                    if not plant.places:
                        return None, [
                            "Exits: the app reads its data in a way in which no bits could be planted "
                            "(no --data, no torch data set, no table of numpy, pandas or scikit-learn)"
                        ]
                    again = self._planted(orders, Plant.draw(options.seed), update)
                readings.append(reading)
                bits.append(plant.bits)
                places |= plant.places
                advance(number + 1, "")
                if time.monotonic() - begun > options.planted_seconds:
                    break
        if all(content.kind == "error" for reading in readings for content in reading.values()):
            return None, ["Exits: with planted data the client fails, so nothing leaves it"]
        report = measure_exits(readings, np.array(bits), again, sorted(places))
        if not report.decisive:
            few = f"Exits: {report.runs} repetitions are too few to tell bits from chance"
            return report, [f"{few}; see --exit-seconds and --planted-runs"]
        return report, []

    def _planted(
        self, orders: Sequence[Exchange], plant: Plant, update: set[tuple[str, str]]
    ) -> dict[str, Reading]:
        """Let one client answer its orders with planted data; the app is imported anew for it."""
        found: dict[str, Reading] = {}
        change = plant.columns if self._options.data else None
        with ExitStack() as stack:
            stack.enter_context(local_hub(self._options.data, change))
            stack.enter_context(planted(plant))
            stack.enter_context(planted_files(plant, self._app.root))
            _, client = stack.enter_context(fresh_app(self._app))
            for exchange in orders:
                reply = answer_or_error(
                    client,
                    self._options.mods,
                    copy_message(exchange.order),
                    copy_context(exchange.context),
                    exchange.seed,
                )
                found = read_channels(reply, update) | found
        return found

    def _picture(
        self, exits: ExitReport, traffic: Traffic, update: set[tuple[str, str]]
    ) -> np.ndarray | None:
        contents: dict[str, Reading] = {}
        for exchange in _orders(traffic, update):
            contents = read_channels(exchange.reply, update) | contents
        return hidden_picture(exits.decoded, contents)


class _Recording(ClientApp):
    """The app's client app; keeps a tape of every client's first training."""

    def __init__(self, app: ClientApp, declared: Declared, tapes: dict[int, Tape], traffic: Traffic) -> None:
        super().__init__()
        self._app, self._declared, self._tapes, self._traffic = app, declared, tapes, traffic

    def __call__(self, message: Message, context: Context) -> Message:
        self._declared.begin()
        # one tape with steps is enough, and tapes hold all batches
        if any(tape.steps for tape in self._tapes.values()) or not message.metadata.message_type.startswith(
            "train"
        ):
            return self._app(message, context)
        with recording() as recorder:
            reply = self._app(message, context)
        tape = recorder.finish()
        settings = self._declared.level.settings
        if settings.get("noise_multiplier") is not None:
            tape.dp = tuple(  # type: ignore[assignment]
                float(settings[name]) for name in ("max_grad_norm", "noise_multiplier", "expected_batch_size")
            )
        # weights as they are now: the client may train the same model again
        for model in tape.models:
            model.live = copied(model.live)
        self._tapes[len(self._traffic.exchanges)] = tape
        return reply


def _orders(traffic: Traffic, update: Collection[Name]) -> list[Exchange]:
    """Return one answered exchange of each form of reply, of the first trained client where it can be.

    A form is the message's type with names and sizes of the reply's channels: what leaves in later rounds
    alone is asked for, too.
    """
    trained = traffic.of("train")
    client = trained[0].client if trained else 0
    found: dict[tuple[object, ...], Exchange] = {}
    answered = [exchange for exchange in traffic.exchanges if not exchange.failed]
    for exchange in sorted(answered, key=lambda exchange: exchange.client != client):
        channels = read_channels(exchange.reply, update)
        form = tuple((n, len(c.values)) for n, c in sorted(channels.items()) if not c.text)
        kind = exchange.order.metadata.message_type
        known = [key for key in found if key[0] == kind]
        if len(known) < _MOST_FORMS:
            found.setdefault((kind, *form), exchange)
    return list(found.values())


def _traces(found: Understanding) -> tuple[Trace, ...] | None:
    """Return the marks of the app's own defense, if it has one."""
    rate = found.facts.get("learning rate")
    if found.noise is not None and isinstance(rate, int | float):
        steps = int(str(found.facts["local steps"]))
        return (Trace(noise=float(rate) * found.noise * steps**0.5),)
    return (Trace(noise=found.added),) if found.added else None


def _settings(recorded: Recorded) -> dict[str, Any]:
    mods = [getattr(mod, "__name__", type(mod).__name__) for mod in recorded.declared.train_mods()]
    exchange = recorded.traffic.of("train")[0]
    weights = [
        key
        for record in exchange.reply.content.metric_records.values()
        for key in record
        if "example" in key.lower() or "sample" in key.lower()
    ]
    return {
        "mods": mods,
        "strategy wrappers": [part.kind for part in recorded.declared.parts],
        "rounds declared": recorded.declared.rounds,
        "weighting key": weights[0] if weights else None,
    }


def _traffic(traffic: Traffic) -> dict[str, Any]:
    kinds = sorted({exchange.order.metadata.message_type for exchange in traffic.exchanges})
    return {
        "messages": {k: sum(e.order.metadata.message_type == k for e in traffic.exchanges) for k in kinds},
        "errors": traffic.errors()[:5],
        "reply bytes": traffic.bytes(),
        "cohorts": traffic.cohorts(),
    }


def _run_server(server: ServerApp, grid: AuditedGrid, context: Context) -> str:
    """Run a server until it ends; return its error in words, "" without one."""
    try:
        server(grid, context)
    except (EnoughRounds, SystemExit):
        return ""
    except QuorumError:
        raise
    except Exception as error:  # a stranger's server may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
    return ""


def _first_error(traffic: Traffic) -> str:
    errors = traffic.errors()
    return f"; its clients' first error: {errors[0]}" if errors else ""


def _failed(recorded: Recorded) -> list[str]:
    if not recorded.failure:
        return []
    return [f"What the server does later: it ended with an error ({recorded.failure})"]


def _never_tested() -> list[str]:
    return [
        "Membership and property inference, collusion of several clients, timing, and attacks that need "
        "pretrained generative models",
        "Other settings than those of this run: another batch size, model or data set leaks otherwise",
    ]


def _use_model(tape: Tape, name: str) -> None:
    """Let the tape's model be of the user's factory, with the weights that were recorded."""
    module, colon, factory = name.partition(":")
    if not (module and colon and factory):
        raise ValueError(f"--model: expected package.module:factory, got {name!r}")
    try:
        made = getattr(import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--model: {name} cannot be imported: {error}") from error
    if not isinstance(made, nn.Module):
        raise ValueError(f"--model: expected that {name} returns a torch module, got {type(made).__name__}")
    for model in tape.models:
        if {k: v.shape for k, v in made.state_dict().items()} == {
            k: v.shape for k, v in model.start.state_dict().items()
        }:
            made.load_state_dict(model.start.state_dict())
            model.start = made
            return
    raise ValueError(f"--model: {name} has other weights than every model that the client called")


def _own_supernodes(root: Path) -> int | None:
    """Return the number of clients of the app's own simulation, where its pyproject.toml has one."""
    tool = tomllib.loads((root / "pyproject.toml").read_text()).get("tool", {}).get("flwr", {})
    federations = tool.get("federations", {})
    named = federations.get(federations.get("default", ""), {})
    number = named.get("options", {}).get("num-supernodes") if isinstance(named, dict) else None
    return int(number) if isinstance(number, int) else None
