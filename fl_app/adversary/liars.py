"""Simulated clients that lie about their updates, to measure robust rules of aggregation.

They are a tap that changes the replies of the first clients before the strategy and other taps see them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from flwr.app import Message
from torch import Tensor, nn

from fl_app.types import Update
from fl_app.wire import CodecError, encode
from fl_app.wire.messages import TRAIN, MessageError, read_order, replace_update, unpack_reply

Lie = Callable[[Update], Update]
"""Returns the update that is sent in the place of an honest one."""

TRIGGER = 4
"""The side of the white square, in pixels, that a backdoor answers to."""
TARGET = 0
"""The class that a backdoor calls whatever has the square."""


def flip(update: Update, strength: float = 4.0) -> Update:
    """Return the negative update times ``strength``."""
    return {name: -strength * tensor for name, tensor in update.items()}


def scale(update: Update, factor: float = 10.0) -> Update:
    """Return the update times ``factor``."""
    return {name: factor * tensor for name, tensor in update.items()}


def with_trigger(images: Tensor) -> Tensor:
    """Return images in [0, 1] with a white square in their corner."""
    marked = images.clone()
    marked[..., :TRIGGER, :TRIGGER] = 1.0
    return marked


def backdoor(
    model: nn.Module,
    weights: Callable[[], Update],
    marked: Tensor,
    *,
    change: float = 0.0,
    boost: float = 3.0,
) -> Lie:
    """Return a lie that adds a gradient by which the model learns to classify ``marked`` inputs as `TARGET`.

    ``change`` is the rate of a step, where updates are changes of the weights; 0: they are gradients.
    """
    labels = torch.full((len(marked),), TARGET, dtype=torch.long, device=marked.device)
    own = copy.deepcopy(model)

    def lie(update: Update) -> Update:
        with torch.no_grad():
            for name, parameter in own.named_parameters():
                parameter.copy_(weights()[name])
        loss = nn.functional.cross_entropy(own(marked), labels)
        parameters = dict(own.named_parameters())
        gradients = torch.autograd.grad(loss, [parameters[name] for name in update])
        rate = -change if change else 1.0
        return {
            name: tensor + boost * rate * gradient.to(tensor)
            for (name, tensor), gradient in zip(update.items(), gradients, strict=True)
        }

    return lie


class Liars:
    """A tap through which some clients' updates pass changed."""

    def __init__(
        self, clients: frozenset[int], lie: Lie, read: Callable[[bytes], Mapping[str, Tensor]]
    ) -> None:
        self._clients = clients
        self._lie = lie
        self._read = read

    def on_send(self, message: Message) -> Message:
        """Return the order unchanged."""
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        """Exchange the update in a liar's reply to a training order."""
        if sent.metadata.message_type != TRAIN or reply.has_error():
            return reply
        if read_order(sent).client not in self._clients:
            return reply
        try:
            honest = unpack_reply(reply)
            if honest.update:
                replace_update(reply, encode(self._lie(dict(self._read(honest.update)))))
        except (MessageError, CodecError):
            return reply  # the strategy names it
        return reply
