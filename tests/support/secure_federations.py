"""Secure federations for tests: who fails when, what an active server alters, what the sum must be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real_client_app
from fl_app.config.build import server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.copies import copy_message
from fl_app.flower.held_tensor import hold, release
from fl_app.flower.tapped import TappedGrid
from fl_app.secagg import FixedPoint
from fl_app.sketches import flatten
from fl_app.strategies import FLStd, NoUpdateUsed
from fl_app.types import Update
from fl_app.wire import decode
from fl_app.wire.messages import ENDORSE, OFFER, SHARE, TRAIN, UNMASK, VALUES, pack_secure, unpack_reply

TINY = (
    "model=mlp model.hidden=[8] data.size=8 data.train_per_class=10 data.test_per_class=1 clients=5 "
    "batch_size=4 training.steps=2 lr=0.1 attack=none threads=1 dtype=float64"
)
STAGES = (OFFER, SHARE, TRAIN, UNMASK)
SIGNED_STAGES = (OFFER, SHARE, TRAIN, ENDORSE, UNMASK)


class Drop(NamedTuple):
    """A client that fails once: it raises, or it answers and the answer is lost."""

    round: int
    kind: str
    client: int
    lost: bool = False


class Exchange(NamedTuple):
    round: int
    kind: str
    client: int
    sent: Message
    reply: Message


Edit = Callable[[int, str, int, Message], Message | None]
"""``edit(round, kind, client, message)`` returns what passes instead."""


def unaltered(round: int, kind: str, client: int, message: Message) -> Message:
    return message


@dataclass
class Federation:
    """One run on the inline engine. Next to every client a twin without masks or noise trains as ordered."""

    overrides: str
    drops: Collection[Drop] = ()
    rounds: int = 1
    alter: Edit = unaltered
    """What the server really sends."""
    receive: Edit = unaltered
    """What it gets."""
    own: Mapping[int, str] | None = None
    """Settings of single clients."""
    small: str = TINY

    def __post_init__(self) -> None:
        text = f"{self.small} secagg=on {self.overrides}"
        self.parts = server_parts(text)
        assert isinstance(self.parts.strategy, FLStd)
        self.strategy = self.parts.strategy
        clients = self.parts.config["clients"]
        self.grid = InlineGrid(_App(self), clients, run_config={"overrides": text})
        self.nodes = list(self.grid.get_node_ids())
        for client, settings in (self.own or {}).items():
            self.grid.context(self.nodes[client]).run_config["overrides"] = f"{text} {settings}"
        plain = " ".join(word for word in text.split() if not word.startswith(("secagg", "dp")))
        self._twins = InlineGrid(real_client_app, clients, run_config={"overrides": plain})
        self.exchanges: list[Exchange] = []
        self.vectors: dict[int, dict[int, torch.Tensor]] = {}
        """By round and client: what the client would send if it trusted the server."""
        self.models: list[Update] = []
        """After each round; the first is the one that all began with."""

    def play(self) -> Federation:
        arrays = hold({name: tensor.clone() for name, tensor in self.parts.model.state_dict().items()})
        with suppress(NoUpdateUsed):  # callers look at the records
            self.strategy.start(
                grid=TappedGrid(self.grid, self),
                initial_arrays=arrays,
                num_rounds=self.rounds,
                evaluate_fn=lambda _, model: self.models.append(
                    {name: tensor.clone() for name, tensor in release(model).items()}
                ),
            )
        return self

    @property
    def records(self):
        return self.strategy.records

    @property
    def grid_of_numbers(self) -> FixedPoint:
        return self.strategy.aggregation.terms.fixed_point

    def failed(self, round: int = 1) -> dict[int, str]:
        return {failure.client: failure.reason for failure in self.records[round - 1].failures}

    def notes(self, round: int = 1) -> str:
        return "\n".join(self.records[round - 1].notes)

    def kinds(self, round: int = 1) -> list[str]:
        """Which exchanges a round had, in order."""
        return list(dict.fromkeys(each.kind for each in self.exchanges if each.round == round))

    def of(self, kind: str, client: int, round: int = 1) -> Exchange:
        return next(e for e in self.exchanges if (e.round, e.kind, e.client) == (round, kind, client))

    def ask_again(self, kind: str, client: int, content: RecordDict) -> Message:
        """Send a client something after the run, behind the strategy's back."""
        (reply,) = self.grid.send_and_receive([Message(content, self.nodes[client], kind)])
        return reply

    # The tap.

    def on_send(self, message: Message) -> Message:
        kind, client = message.metadata.message_type, self.nodes.index(message.metadata.dst_node_id)
        if kind == TRAIN:
            self._train_twin(client, copy_message(message))
        altered = self.alter(self._round, kind, client, message)
        assert altered is not None
        return altered

    def on_reply(self, sent: Message, reply: Message) -> Message | None:
        kind, client = sent.metadata.message_type, self.nodes.index(sent.metadata.dst_node_id)
        if kind in SIGNED_STAGES:
            self.exchanges.append(Exchange(self._round, kind, client, sent, copy_message(reply)))
        if Drop(self._round, kind, client, lost=True) in self.drops:
            return None
        return self.receive(self._round, kind, client, reply)

    def raises(self, kind: str, client: int) -> bool:
        return Drop(self._round, kind, client) in self.drops

    @property
    def _round(self) -> int:
        return self.records[-1].round if self.records else 0

    def _train_twin(self, client: int, order: Message) -> None:
        order.content.pop("secure", None)
        (reply,) = self._twins.send_and_receive(
            [Message(order.content, list(self._twins.get_node_ids())[client], TRAIN)]
        )
        assert not reply.has_error(), reply.error
        answer = unpack_reply(reply)
        if not answer.answer.need_model:
            like = torch.empty(self.strategy.sketch.size, dtype=torch.float64)
            vector = decode(answer.update, {VALUES: like})[VALUES]
            self.vectors.setdefault(self._round, {})[client] = vector


class _App(ClientApp):
    """The real client app, except that clients fail when the test says so."""

    def __init__(self, federation: Federation) -> None:
        super().__init__()
        self._federation = federation

    def __call__(self, message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if self._federation.raises(message.metadata.message_type, client):
            raise RuntimeError("disk on fire")
        return real_client_app(message, context)


def sum_by_hand(vectors: Iterable[torch.Tensor], grid: FixedPoint) -> list[int]:
    """The sum in steps, with Python's own whole numbers, one value at a time."""
    most = round(grid.bound / grid.step)
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    return [sum(min(max(round(value / grid.step), -most), most) for value in column) for column in columns]


def mean_by_hand(vectors: Iterable[torch.Tensor], grid: FixedPoint) -> torch.Tensor:
    """The mean of what the grid makes of the vectors, with one rounding at the end."""
    vectors = list(vectors)
    step = Fraction(grid.step)
    return torch.tensor(
        [float(steps * step / len(vectors)) for steps in sum_by_hand(vectors, grid)], dtype=torch.float64
    )


def assert_exact(federation: Federation, round: int, survivors: Iterable[int]) -> None:
    """The model moved by the survivors' mean at the round's coordinates, bit for bit, and nowhere else."""
    mean = mean_by_hand(
        [federation.vectors[round][client] for client in survivors], federation.grid_of_numbers
    )
    expected = flatten(federation.models[round - 1])
    trained = federation.strategy.sketch_of(round).trained
    if trained is None:
        expected += mean
    else:
        expected[trained] += mean
    assert mean.abs().max() > 0
    assert torch.equal(flatten(federation.models[round]), expected)


def assert_unchanged(federation: Federation, round: int) -> None:
    assert torch.equal(flatten(federation.models[round]), flatten(federation.models[round - 1]))


def with_blob(message: Message, blob: bytes) -> Message:
    """Put another blob into a message of secure aggregation."""
    message.content = pack_secure(blob)
    return message
