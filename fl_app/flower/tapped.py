"""Tap on a grid, below every strategy: sees each reply before a strategy can alter it.

A tap that returns what it got is a passive, honest-but-curious server. One that
returns something else is an active one. Strategies do not know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.flower.copies import copy_message
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.internals import name_sender

_Sent = tuple[Message, bool]


class Tap(Protocol):
    """Observer of every exchange; may rewrite messages, and alter or withhold replies."""

    def on_send(self, message: Message) -> Message:
        """Return the message to be sent instead."""
        ...

    def on_reply(self, sent: Message, reply: Message) -> Message | None:
        """Return the reply that the strategy gets; None leaves it out."""
        ...


class TappedGrid(ForwardingGrid):
    """A grid that shows every exchange to a tap. The tap gets copies: it cannot alter by accident.

    A tap that has ``concerns(message)`` is shown the exchanges for which that is true.
    """

    def __init__(self, grid: Grid, tap: Tap) -> None:
        super().__init__(grid)
        self._tap = tap
        self._concerns: Callable[[Message], bool] = getattr(tap, "concerns", lambda message: True)
        self._sent: dict[str, _Sent] = {}  # by message id, until the reply comes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages past the tap and return the replies that it lets through."""
        sent = [self._past(message) for message in messages]
        replies = list(self._grid.send_and_receive([message for message, _ in sent], timeout=timeout))
        by_id = {message.metadata.message_id: (message, shown) for message, shown in sent}
        return self._returned(replies, by_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages past the tap."""
        sent = [self._past(message) for message in messages]
        ids = list(self._grid.push_messages([message for message, _ in sent]))
        self._sent |= dict(zip(ids, sent, strict=False))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived and that the tap lets through."""
        replies = list(self._grid.pull_messages(message_ids))
        by_id = {
            reply.metadata.reply_to_message_id: self._sent.pop(reply.metadata.reply_to_message_id)
            for reply in replies
            if reply.metadata.reply_to_message_id in self._sent
        }
        return self._returned(replies, by_id)

    def _past(self, message: Message) -> _Sent:
        """Return the message that the tap lets through, and whether the tap was shown it."""
        if not self._concerns(message):
            return message, False
        return self._tap.on_send(copy_message(message)), True

    def _returned(self, replies: list[Message], sent: dict[str, _Sent]) -> list[Message]:
        passed: list[Message | None] = []
        for reply in replies:
            order, shown = sent.get(reply.metadata.reply_to_message_id, (None, False))
            if order is not None and reply.has_error():
                # a SuperLink answers itself, with an error, for a node that is gone
                name_sender(reply, order.metadata.dst_node_id)
            passed.append(self._tap.on_reply(order, copy_message(reply)) if order and shown else reply)
        return [reply for reply in passed if reply is not None]
