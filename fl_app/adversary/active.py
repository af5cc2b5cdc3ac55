"""Malicious server: sends manipulated models to chosen clients and reads their updates.

The round continues without the attacked clients' updates, which belong to another model, so that the
trained model is not affected. Clients store their state by the hash of the model, and every
manipulation has its own hash: an honest residual or version is not touched either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor, nn

from fl_app.adversary.passive import PassiveServer
from fl_app.console.words import foreign
from fl_app.models import ModelSpec
from fl_app.training import parameters, state_buffers
from fl_app.types import Manipulated, Update
from fl_app.wire import decode_masks, encode
from fl_app.wire.messages import (
    TRAIN,
    MessageError,
    Order,
    leave_out,
    pack_blob,
    read_locations,
    read_order,
    replace_order,
)


class _Bait(NamedTuple):
    """The model that the attacked clients of one round get."""

    round: int
    spec: ModelSpec
    weights: Update
    buffers: Update
    packed: tuple[ArrayRecord, ArrayRecord | None]


class ActiveServer(PassiveServer):
    """A tap that exchanges the model in attacked clients' orders, and keeps their replies from the mean."""

    def __init__(
        self,
        *,
        spec: ModelSpec,
        template: nn.Module,
        manipulate: Callable[[nn.Module], Manipulated],
        **audit: Any,
    ) -> None:
        super().__init__(**audit)
        self._spec = spec
        self._template = template
        self._manipulate = manipulate
        self._bait: _Bait | None = None
        self._baited: set[tuple[int, int]] = set()

    def on_send(self, message: Message) -> Message:
        """Exchange the model of an attacked client's training order."""
        message = super().on_send(message)
        if message.metadata.message_type == TRAIN and self.attacks(order := read_order(message)):
            bait = self._bait_of(order.round)
            self._baited.add((order.round, order.client))
            changed = replace(
                order,
                model_hash=bait.spec.hash,
                model_spec=bait.spec.to_json(),
                base=-1,
                counted=0,
                keep=False,
            )
            replace_order(message, changed, *bait.packed, self._locations(message, bait))
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        """Read an attacked client's update, and keep it from the mean."""
        passed = super().on_reply(sent, reply)
        if sent.metadata.message_type == TRAIN and self.attacks(order := read_order(sent)):
            if passed.has_error():
                self.notes.append(
                    f"round {order.round}: client {order.client} did not train on the manipulated model: "
                    f"{foreign(passed.error.reason)}"
                )
            else:
                with suppress(MessageError):  # the strategy names who sent what cannot be read
                    leave_out(passed)
        return passed

    def withholds(self, server_round: int, client: int) -> bool:
        """Say whether a client was sent a manipulated model in a round."""
        return (server_round, client) in self._baited

    def reached(self) -> set[int]:
        """Return the rounds in which a client was sent a manipulated model, also if it refused it."""
        return super().reached() | {server_round for server_round, _ in self._baited}

    def model_for(self, order: Order) -> tuple[Update, Update]:
        """Return the weights and the buffers of the model that goes with an order."""
        if not self.attacks(order):
            return super().model_for(order)
        bait = self._bait_of(order.round)
        return bait.weights, bait.buffers

    def _bait_of(self, server_round: int) -> _Bait:
        if self._bait is None or self._bait.round != server_round:
            weights, buffers = self._model()
            with torch.no_grad():
                for name, tensor in self._template.state_dict().items():
                    if name in weights or name in buffers:  # not frozen, and no second name of another
                        tensor.copy_(weights[name] if name in weights else buffers[name])
            model, extensions = self._manipulate(self._template)
            own = {name: p.detach() for name, p in parameters(model).items()}
            beside = state_buffers(model)
            self._bait = _Bait(
                round=server_round,
                spec=self._spec.manipulated(server_round, extensions),
                weights=own,
                buffers=beside,
                packed=(pack_blob(encode(own)), pack_blob(encode(beside)) if beside else None),
            )
        return self._bait

    def _locations(self, message: Message, bait: _Bait) -> ArrayRecord | None:
        """Return the positions of a round that names some: the same, and everything that was added."""
        blob = read_locations(message)
        if not blob:
            return None
        named = decode_masks(blob, self._model()[0])
        return pack_blob(
            encode({name: _honest(name, tensor, named) for name, tensor in bait.weights.items()})
        )


def _honest(name: str, tensor: Tensor, named: Mapping[str, Tensor]) -> Tensor:
    """Return the positions that were named in a tensor of the honest model, all in one that it lacks."""
    for known, mask in named.items():
        if (name == known or name.endswith(f".{known}")) and mask.shape == tensor.shape:
            return mask
    return torch.ones_like(tensor, dtype=torch.bool)
