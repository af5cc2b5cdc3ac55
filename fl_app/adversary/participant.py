"""Participant as attacker: one client's view of the others through the models that it receives.

Two consecutive models tell the mean update of the round between them. Less the participant's own share,
that is the mean of the others: with two clients, the other's own update (Zhu et al. 2019, Fig. 1b).
Only the participant's own messages are read for it; what audited clients reveal is for scores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor

from fl_app.adversary.passive import SUM, PassiveServer, Sighting, together
from fl_app.console.words import foreign
from fl_app.types import Truth, Update
from fl_app.wire import CodecError, apply_change, decode
from fl_app.wire.messages import (
    IDENTIFY,
    TRAIN,
    Answer,
    MessageError,
    Order,
    add_audit_order,
    read_order,
    unpack_order,
    unpack_reply,
)

logger = logging.getLogger(__name__)

Undo = Callable[[Update, Update, int], tuple[Update, Update]]
"""From a model, the next one and the round to the mean update, and how far rounding may be off."""


@dataclass(frozen=True)
class _Own:
    """The participant's part of one round."""

    order: Order
    answer: Answer
    weights: Update
    buffers: Update
    update: Update


class Participant(PassiveServer):
    """A tap that follows one client's messages; it alters nothing, and takes out what audits reveal."""

    def __init__(self, *, by: int, clients_in_all: int, undo: Undo, **audit: Any) -> None:
        self._by = by
        self._others = [client for client in range(clients_in_all) if client != by]
        super().__init__(**audit | {"clients": self._others})
        self._undo = undo
        self._weights: Update = {}
        """Weights of the model that it got last; empty if unknown."""
        self._version = -1
        self._round = 0
        self._own: _Own | None = None
        self._truths: dict[int, Truth] = {}

    def concerns(self, message: Message) -> bool:
        """Say that every exchange concerns it: it follows the model from round to round."""
        return True

    def on_send(self, message: Message) -> Message:
        """Follow the model in the participant's orders; ask the others for the truth in attacked rounds."""
        if message.metadata.message_type != TRAIN:
            return message
        order = read_order(message)
        if order.client == self._by:
            self._follow(message)
        if self.in_attacked_round(order) and self._allowed.get(order.client):
            # the participant too: then all of the round compute on as many samples
            add_audit_order(message, replace(self._ask, truth=order.client != self._by, raw=False))
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        """Keep the participant's own reply, and the truths of the others for scores alone."""
        if reply.has_error():
            return reply
        if sent.metadata.message_type == IDENTIFY:
            self._learn(reply)
        elif sent.metadata.message_type == TRAIN:
            order = read_order(sent)
            try:
                truth, _ = self._revealed(unpack_order(sent).audit, reply)
                if truth is not None:
                    self._truths[order.client] = truth
                if order.client == self._by:
                    self._keep(order, sent, reply)
            except (MessageError, CodecError) as error:
                logger.warning("round %d: client %d: %s", order.round, order.client, foreign(error))
        return reply

    def in_attacked_round(self, order: Order) -> bool:
        """Say whether the round is a chosen one: the model that tells of it comes only with the next."""
        return isinstance(self._rounds, str) or order.round in self._rounds

    def _follow(self, message: Message) -> None:
        """Restore the model that the participant receives, and evaluate the round that led to it."""
        parcel = unpack_order(message)
        order = parcel.order
        if order.base < 0:
            self._weights = decode(parcel.model, self._model()[0])  # of these, names and shapes
        elif order.base != self._version:
            self._weights = {}
            self.notes.append(
                f"round {order.round}: what the participant had got before is not known here, as the run was "
                "resumed: it attacks nobody until it gets the whole model"
            )
        elif order.base != order.version:
            self._weights = apply_change(self._weights, parcel.model)
        self._version = order.version if self._weights else -1
        if order.round == self._round:
            return  # the model once more, for a client that had lost the last one
        if self._own is not None and self._own.order.round == order.round - 1 and self._weights:
            self.sightings.append(self._sighting(self._own))
        self._round, self._own, self._truths = order.round, None, {}

    def _keep(self, order: Order, sent: Message, reply: Message) -> None:
        seen = unpack_reply(reply)
        if seen.answer.need_model or not self.in_attacked_round(order) or not self._weights:
            return
        blob, like = unpack_order(sent).buffers, self._model()[1]
        buffers = decode(blob, like) if blob else like
        update = self._read(seen.update, self._by, self._weights, None)
        self._own = _Own(order, seen.answer, self._weights, buffers, update)

    def _sighting(self, own: _Own) -> Sighting:
        mean, rounding = self._undo(own.weights, self._weights, own.order.round)
        known = [self._truths[client] for client in sorted(self._truths)]
        complete = len(known) == len(self._others)
        # nobody tells a participant how many samples others have: without an audit, as many as it has
        samples = (
            sum(len(truth.labels) for truth in known) if complete else len(self._others) * own.answer.samples
        )
        client, summed = (self._others[0], 0) if len(self._others) == 1 else (SUM, len(self._others))
        return Sighting(
            order=replace(own.order, client=client),
            answer=replace(own.answer, client=client, samples=samples),
            weights=own.weights,
            buffers=own.buffers,
            update=without_share(mean, rounding, own.update, own.answer.samples / samples),
            sent_buffers={},
            locations=None,
            broadcaster=False,
            truth=together(known) if complete else None,
            raw=None,
            asked=self._ask.batch_size,
            summed=summed,
            audited=samples if complete else None,
            participant=self._by,
        )


def without_share(
    mean: Mapping[str, Tensor], rounding: Mapping[str, Tensor], own: Mapping[str, Tensor], ratio: float
) -> Update:
    """Return the mean of the others, whose weight is 1 where one's own is ``ratio``.

    Entries no larger than ``rounding`` are unknown and set to 0: a pruned entry is exactly 0.
    """
    rest = {}
    for name, tensor in mean.items():
        exact = (1 + ratio) * tensor.double() - ratio * own[name].double()
        unsure = (1 + ratio) * rounding[name].double()
        rest[name] = torch.where(exact.abs() > unsure, exact, 0.0).to(own[name].dtype)
    return rest
