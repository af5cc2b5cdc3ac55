"""In-process grid of an audit: one client at a time, seeded calls, every exchange kept, no endless waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fl_app.audit.options import Config, Mod
from fl_app.audit.probe import Probe
from fl_app.audit.sandbox import reproducible
from fl_app.audit.traffic import Exchange, Traffic
from fl_app.flower import InlineGrid
from fl_app.flower.copies import copy_context, copy_message
from fl_app.flower.internals import CLIENT_APP_RAISED

_ASKED_IN_VAIN = 3
"""Questions for nodes, one after the other at the pace of a waiting strategy, before it counts as waiting."""
_PACE_SECONDS = 0.5


class EnoughRounds(BaseException):
    """End of the audited rounds; no handler of an app should stop it."""


class QuorumError(ValueError):
    """An app waits for more clients than there are."""


class AuditedClient(ClientApp):
    """The app's client app with mods around it; keeps every exchange."""

    def __init__(
        self,
        app: ClientApp,
        mods: Sequence[Mod],
        traffic: Traffic,
        probe: Probe,
        seed: int,
        advance: Callable[[int, int, str], None],
    ) -> None:
        super().__init__()
        self._app, self._around, self._traffic, self._probe = app, tuple(mods), traffic, probe
        self._seed, self._advance = seed, advance
        self._lock, self._round = threading.RLock(), 0
        self.limit: int | None = None

    def begin_exchange(self, messages: list[Message]) -> None:
        """Count the rounds: one begins with every order to train after another kind or a full exchange."""
        if any(message.metadata.message_type.startswith("train") for message in messages):
            stated = {_stated_round(message) for message in messages} - {None}
            self._round = max(stated) if stated else self._round + 1  # type: ignore[type-var, assignment]
            if self.limit is not None and self._round > self.limit:
                raise EnoughRounds

    def __call__(self, message: Message, context: Context) -> Message:
        with self._lock:
            client = int(context.node_config.get("partition-id", 0))
            seed = self._seed + 1_000_003 * len(self._traffic.exchanges)
            before = copy_context(context)
            order = copy_message(message)
            self._probe.begin()
            reply = answer_or_error(self._app, self._around, message, context, seed)
            inner = self._probe.end()
            exchange = Exchange(order, copy_message(reply), before, inner, seed, max(1, self._round), client)
            self._traffic.exchanges.append(exchange)
            self._advance(exchange.round, client, exchange.kind)
            return reply


class AuditedGrid(InlineGrid):
    """The grid of an audited run. A strategy that waits for clients that will never come is stopped."""

    def __init__(self, client: AuditedClient, num_supernodes: int, run_config: Config) -> None:
        super().__init__(client, num_supernodes, run_config=run_config, node_config={"allow-audit": False})
        self._client, self._asked, self._last = client, 0, 0.0
        self._sending = threading.RLock()

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes; refuse to be asked in vain for ever."""
        now = time.monotonic()
        # a strategy that waits asks about once a second, the legacy server's own thread every three
        waiting = _PACE_SECONDS < now - self._last < 2
        self._asked, self._last = (self._asked + 1 if waiting else 0), now
        if self._asked >= _ASKED_IN_VAIN and threading.current_thread() is threading.main_thread():
            raise QuorumError(_quorum(len(self._nodes), "more"))
        return super().get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run every message's client at once, one at a time."""
        return self._process(list(messages), None)

    def _process(self, messages: list[Message], timeout: float | None) -> list[str]:
        with self._sending:
            self._asked = 0
            self._client.begin_exchange(messages)
            return super()._process(messages, timeout)


def answer(app: ClientApp, mods: Sequence[Mod], message: Message, context: Context, seed: int) -> Message:
    """Call a client app with the global generators seeded, so that the call repeats."""
    reproducible(seed)
    call: Callable[[Message, Context], Message] = app
    for mod in reversed(mods):
        call = _around(mod, call)
    return call(message, context)


def answer_or_error(
    app: ClientApp, mods: Sequence[Mod], message: Message, context: Context, seed: int
) -> Message:
    """Call a client app; an exception becomes an error reply, as on the grid."""
    try:
        return answer(app, mods, message, context, seed)
    except Exception as error:  # a stranger's client may raise anything
        return Message(Error(code=CLIENT_APP_RAISED, reason=f"{type(error)}:<'{error}'>"), reply_to=message)


def check_quorum(wanted: int, there: int) -> None:
    """Refuse to wait for clients that will never come."""
    if wanted > there:
        raise QuorumError(_quorum(there, str(wanted)))


def _quorum(there: int, wanted: str) -> str:
    return (
        f"the app waits for {wanted} clients and there are {there}, so no round would ever begin; "
        "give --supernodes, or lower the app's minimum with --run-config"
    )


def _around(mod: Mod, call: Callable[[Message, Context], Message]) -> Callable[[Message, Context], Message]:
    return lambda message, context: mod(message, context, call)


def _stated_round(message: Message) -> int | None:
    if message.has_content():
        for record in message.content.config_records.values():
            for key in ("server-round", "server_round"):
                if isinstance(record.get(key), int):
                    return int(record[key])  # type: ignore[arg-type]
    group = message.metadata.group_id
    return int(group) if group.isdecimal() else None
