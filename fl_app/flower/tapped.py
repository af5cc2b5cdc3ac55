"""Tap on a grid, below every strategy: sees each reply before a strategy can alter it.

A tap that returns what it got is a passive, honest-but-curious server. One that
returns something else is an active one. Strategies do not know of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.flower.copies import copy_message
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.internals import name_sender


class Tap(Protocol):
    """Observer of every exchange; may rewrite messages, and alter or withhold replies."""

    def on_send(self, message: Message) -> Message:
        """Return the message to be sent instead."""
        ...

    def on_reply(self, sent: Message, reply: Message) -> Message | None:
        """Return the reply that the strategy gets; None leaves it out."""
        ...


class TappedGrid(ForwardingGrid):
    """A grid that shows every exchange to a tap. The tap gets copies: it cannot alter by accident."""

    def __init__(self, grid: Grid, tap: Tap) -> None:
        super().__init__(grid)
        self._tap = tap
        self._sent: dict[str, Message] = {}  # by message id, until the reply comes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages past the tap and return the replies that it lets through."""
        sent = [self._tap.on_send(copy_message(message)) for message in messages]
        replies = list(self._grid.send_and_receive(sent, timeout=timeout))
        by_id = {message.metadata.message_id: message for message in sent}
        return self._shown(replies, by_id)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages past the tap."""
        sent = [self._tap.on_send(copy_message(message)) for message in messages]
        ids = list(self._grid.push_messages(sent))
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
        return self._shown(replies, by_id)

    def _shown(self, replies: list[Message], sent: dict[str, Message]) -> list[Message]:
        passed: list[Message | None] = []
        for reply in replies:
            order = sent.get(reply.metadata.reply_to_message_id)
            if order is not None and reply.has_error():
                # a SuperLink answers itself, with an error, for a node that is gone
                name_sender(reply, order.metadata.dst_node_id)
            passed.append(reply if order is None else self._tap.on_reply(order, copy_message(reply)))
        return [reply for reply in passed if reply is not None]
