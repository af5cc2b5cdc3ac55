"""Small federations for tests: the real apps on the inline engine, with taps and saboteurs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real_client_app
from fl_app.config.build import ServerParts, server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.strategies import NoUpdateUsed
from fl_app.wire.messages import TRAIN, pack_reply, unpack_reply

SMALL = (
    "data.train_per_class=8 data.test_per_class=4 clients=5 batch_size=4 "
    "rounds=2 lr=0.1 attack=none threads=1"
)

Sabotage = Callable[[Message, Message, Context], Message]
"""``sabotage(order, reply, context)`` returns the reply that leaves the client instead."""


class SabotagedApp(ClientApp):
    """The real client app, except that chosen clients do something to their replies to orders of a kind."""

    def __init__(self, saboteurs: dict[int, Sabotage], kind: str = TRAIN) -> None:
        super().__init__()
        self._saboteurs = saboteurs
        self._kind = kind

    def __call__(self, message: Message, context: Context) -> Message:
        reply = real_client_app(message, context)
        sabotage = self._saboteurs.get(int(context.node_config["partition-id"]))
        if sabotage is None or message.metadata.message_type != self._kind:
            return reply
        return sabotage(message, reply, context)


@dataclass
class Wiretap:
    """Keeps every exchange of one kind."""

    kind: str = TRAIN

    exchanges: list[tuple[Message, Message]] = field(default_factory=list)

    def on_send(self, message: Message) -> Message:
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        if sent.metadata.message_type == self.kind:
            self.exchanges.append((sent, reply))
        return reply


def with_update(reply: Message, blob: bytes) -> Message:
    """Put another blob into a client's reply."""
    old = unpack_reply(reply)
    reply.content = pack_reply(replace(old, update=blob))
    return reply


def train(
    overrides: str,
    saboteurs: dict[int, Sabotage] | None = None,
    grid: InlineGrid | None = None,
    *,
    kind: str = TRAIN,
) -> tuple[ServerParts, Wiretap]:
    """Train as ``overrides`` say (on top of SMALL) and return the server's parts and what passed by.

    ``kind`` is the type of the messages that saboteurs answer and the wiretap keeps.
    """
    text = f"{SMALL} {overrides}"
    parts = server_parts(text, WHOLE)
    config = parts.config
    tap = Wiretap(kind)
    if grid is None:
        app = SabotagedApp(saboteurs or {}, kind)
        grid = InlineGrid(app, config["clients"], run_config={"overrides": text})
    with suppress(NoUpdateUsed):  # callers look at the records
        parts.strategy.start(
            grid=TappedGrid(grid, tap),
            initial_arrays=hold(parts.model.state_dict()),
            num_rounds=config["rounds"],
        )
    return parts, tap
