"""What a deployed run must come to: the same run in one process, with the same losses and no others.

Clients draw by seed, round and number, and updates are added up in the order of clients, so a deployment
gives the same model bit for bit. An update that a fault loses, or counts twice, gives another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.held_tensor import hold
from fl_app.results import Round
from fl_app.strategies import FedSGD
from fl_app.types import Update
from fl_app.wire.messages import TRAIN, unpack_order


@dataclass(frozen=True)
class Losses:
    """Pairs of a client and a round."""

    unheard: frozenset[tuple[int, int]] = frozenset()
    """Whose orders never arrived: the client did nothing."""
    uncounted: frozenset[tuple[int, int]] = frozenset()
    """Whose answers never arrived: the client did its work, remembers it, and sends it with the next."""


class LossyGrid(ForwardingGrid):
    """A grid that loses what it is told to, and nothing else."""

    def __init__(self, grid: Grid, losses: Losses) -> None:
        super().__init__(grid)
        self._losses = losses

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pass on what is not lost."""
        arriving, silent = [], set[int]()
        for message in messages:
            if message.metadata.message_type == TRAIN:
                order = unpack_order(message).order
                if (order.client, order.round) in self._losses.unheard:
                    continue
                if (order.client, order.round) in self._losses.uncounted:
                    silent.add(message.metadata.dst_node_id)
            arriving.append(message)
        replies = self._grid.send_and_receive(arriving, timeout=timeout)
        return [reply for reply in replies if reply.metadata.src_node_id not in silent]


def model_after(overrides: str, losses: Losses) -> Update:
    """Return the model that training with these losses comes to."""
    strategy = _train(overrides, losses)
    return strategy.weights | strategy.buffers


def records_of(overrides: str) -> list[Round]:
    """Return what the rounds of a run without losses are."""
    return _train(overrides, Losses()).records


def _train(overrides: str, losses: Losses) -> FedSGD:
    parts = server_parts(overrides, WHOLE)
    clients = InlineGrid(app, parts.config["clients"], run_config={"overrides": overrides})
    parts.strategy.start(
        grid=LossyGrid(clients, losses),
        initial_arrays=hold({name: tensor.clone() for name, tensor in parts.model.state_dict().items()}),
        num_rounds=parts.config["rounds"],
    )
    return parts.strategy


def same(one: Update, other: Update) -> bool:
    """Say whether two models are the same bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
