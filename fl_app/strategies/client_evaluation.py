"""Evaluation by clients: send the whole model, average the returned metrics by samples."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message

from fl_app.console.words import foreign
from fl_app.results import Round
from fl_app.strategies.aggregate import mean_metrics
from fl_app.strategies.exchange import Exchange
from fl_app.wire.messages import (
    EVALUATE,
    EXAMPLES,
    MessageError,
    Order,
    blob_size,
    content_bytes,
    pack_order,
    read_metrics,
)

logger = logging.getLogger(__name__)


class ClientEvaluation:
    """One round of evaluation: the clients asked, and their answers."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def ask(
        self,
        orders: Mapping[int, Order],
        nodes: Mapping[int, int],
        model: ArrayRecord,
        buffers: ArrayRecord | None,
        config: ConfigRecord,
        record: Round,
    ) -> list[Message]:
        """Return a message for every client, and count its bytes; ``nodes`` are their node ids."""
        self._asked = {nodes[client]: client for client in orders}
        messages, known = [], dict[int, int]()
        for client, order in orders.items():
            content = pack_order(order, model, buffers, config=config)
            record.count_down(content_bytes(content, known), blob=blob_size(model))
            messages.append(Message(content, nodes[client], EVALUATE))
        return messages

    def mean(self, replies: Iterable[Message], exchange: Exchange) -> dict[str, float]:
        """Return the metrics that most clients report, averaged by their samples."""
        told: dict[int, Mapping[str, float]] = {}
        for message in replies:
            client = self._asked.pop(message.metadata.src_node_id, None)
            if client is None:
                continue
            try:
                exchange.receive(message)
                metrics = exchange.gate.admit_evaluation(client, read_metrics(message))
            except MessageError as error:
                said = foreign(error)
                logger.warning("round %d: client %d: evaluation: %s", exchange.record.round, client, said)
                continue
            if metrics[EXAMPLES] > 0:
                told[client] = metrics
        weights = {client: metrics[EXAMPLES] for client, metrics in told.items()}
        return mean_metrics(told, exchange.gate.weights(weights))
