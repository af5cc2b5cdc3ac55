"""Wrapper of any strategy of Flower that unpacks the replies of mods with ``packed=True``."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.flower.copies import copy_records
from fl_app.flower.internals import turn_into_error
from fl_app.mods.arrays import Unreadable
from fl_app.mods.packed import is_packed, unpack_update
from fl_app.strategies.around import Around
from fl_app.strategies.gate import check_update
from fl_app.wire import CodecError

logger = logging.getLogger(__name__)


class Unpacked(Around):
    """Gives the wrapped strategy the arrays that a packed reply stands for.

    Replies that are not packed pass as they are. One that cannot be unpacked becomes an error reply, so that
    the strategy counts its client as failed and the round goes on.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self._asked: dict[int, RecordDict] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages, and remember what each node was sent."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._asked = {message.metadata.dst_node_id: message.content for message in messages}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Unpack the replies and give them to the wrapped strategy."""
        return super().aggregate_train(server_round, [self._unpacked(reply) for reply in replies])

    def _unpacked(self, reply: Message) -> Message:
        if reply.has_error() or not is_packed(reply.content):
            return reply
        node = reply.metadata.src_node_id
        content = copy_records(reply.content)
        try:
            asked = self._asked.get(node)
            if asked is None:
                raise Unreadable("packed reply: of a node that was not asked")
            _, change, buffers = unpack_update(content, asked)
            check_update(change, {name: t.double() for name, t in buffers.items()})
        except (Unreadable, CodecError) as error:
            logger.warning("node %d: %s", node, error)
            return turn_into_error(reply, str(error))
        reply.content = content
        return reply
