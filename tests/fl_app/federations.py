"""Small federations for tests: the real apps on the inline engine, with taps and saboteurs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real_client_app
from fl_app.config import ServerParts, server_parts
from fl_app.engine import InlineGrid
from fl_app.held_tensor import hold
from fl_app.messages import TRAIN
from fl_app.tap import TappedGrid

SMALL = (
    "data.train_per_class=8 data.test_per_class=4 clients=5 batch_size=4 "
    "rounds=2 lr=0.1 attack=none threads=1"
)

Sabotage = Callable[[Message, Message, Context], Message]
"""``sabotage(order, reply, context)`` returns the reply that leaves the client instead."""


class SabotagedApp(ClientApp):
    """The real client app, except that chosen clients do something to their replies."""

    def __init__(self, saboteurs: dict[int, Sabotage]) -> None:
        super().__init__()
        self._saboteurs = saboteurs

    def __call__(self, message: Message, context: Context) -> Message:
        reply = real_client_app(message, context)
        sabotage = self._saboteurs.get(int(context.node_config["partition-id"]))
        if sabotage is None or message.metadata.message_type != TRAIN:
            return reply
        return sabotage(message, reply, context)


@dataclass
class Wiretap:
    """Keeps every training exchange."""

    exchanges: list[tuple[Message, Message]] = field(default_factory=list)

    def on_send(self, message: Message) -> Message:
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        if sent.metadata.message_type == TRAIN:
            self.exchanges.append((sent, reply))
        return reply


def train(
    overrides: str, saboteurs: dict[int, Sabotage] | None = None, grid: InlineGrid | None = None
) -> tuple[ServerParts, Wiretap]:
    """Train as ``overrides`` say (on top of SMALL) and return the server's parts and what passed by."""
    text = f"{SMALL} {overrides}"
    parts = server_parts(text)
    config = parts.config
    tap = Wiretap()
    if grid is None:
        app = SabotagedApp(saboteurs or {})
        grid = InlineGrid(app, config["clients"], run_config={"overrides": text})
    parts.strategy.start(
        grid=TappedGrid(grid, tap),
        initial_arrays=hold(parts.model.state_dict()),
        num_rounds=config["rounds"],
    )
    return parts, tap
