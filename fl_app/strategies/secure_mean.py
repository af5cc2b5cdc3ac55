"""Secure aggregation around any strategy of Flower that takes the weighted mean of its replies.

The wrapped strategy gets one reply: the mean, with the weight of all clients together. Its own mean of this
one reply is the mean of all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import flwr.serverapp.strategy as flower
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.console.words import foreign
from fl_app.flower.copies import copy_records
from fl_app.mods.arrays import Unreadable
from fl_app.mods.secure_job import BLOB, CLIENT, EXCHANGE, MASK, RECORD, SecureJob, Summed, read_job
from fl_app.secagg import RoundFailed
from fl_app.strategies.around import Around

if TYPE_CHECKING:
    from fl_app.strategies.secure import SecureAggregation

logger = logging.getLogger(__name__)

_NOBODY = -1
_OF_A_MEAN = (flower.FedAvg, flower.FedAdam, flower.FedYogi, flower.FedAdagrad, flower.FedAvgM)
"""Strategies whose `aggregate_train` uses nothing but the weighted mean; FedProx and FedOpt inherit it."""


class SecureMean(Around):
    """See `SecureAggregation.wrap`."""

    def __init__(
        self,
        strategy: Strategy,
        aggregation: SecureAggregation,
        summed: Summed,
        *,
        timeout: float,
        takes_mean: bool,
    ) -> None:
        super().__init__(strategy)
        if not takes_mean:
            _check_mean(strategy)
        self.aggregation = aggregation
        self.summed = summed
        self._timeout = timeout
        self._numbers: dict[int, int] = {}
        self._grid: Grid | None = None
        self._kind = ""
        self._job: SecureJob | None = None
        self._orders: dict[int, Message] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Agree on keys with the clients; return their training messages, or none if that failed."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self._grid, self._job, self._orders = grid, None, {}
        if not messages:
            return []
        first = messages[0]
        if any(m.content is not first.content and m.content != first.content for m in messages):
            raise ValueError(
                "SecureAggregation: the strategy sends different messages to its clients, and only updates "
                "of one model can be summed"
            )
        self._kind = first.metadata.message_type
        nodes = {self._number_of(m.metadata.dst_node_id): m.metadata.dst_node_id for m in messages}
        job = read_job(first.content, self.summed)
        try:
            deliveries = self.aggregation.begin(
                lambda kind, blobs: self._ask(kind, blobs),
                sorted(nodes),
                round=server_round,
                job=job.digest,
                size=job.size,
                grid=None,
            )
        except RoundFailed as error:
            logger.warning("round %d: %s", server_round, error)
            return []
        self._job = job
        for client, blob in deliveries.items():
            content = copy_records(first.content)
            content[RECORD] = _packed(MASK, client, blob)
            self._orders[client] = Message(content, nodes[client], self._kind)
        return list(self._orders.values())

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Give the wrapped strategy the mean of the round, and the errors of the clients that failed."""
        came = list(replies)
        failed = [reply for reply in came if reply.has_error()]
        if self._job is None:
            return super().aggregate_train(server_round, failed)
        masked = {}
        for reply in came:
            client = self._numbers.get(reply.metadata.src_node_id)
            blob = None if reply.has_error() else _blob(reply)
            if client is not None and blob is not None:
                masked[client] = blob
        try:
            total = self.aggregation.finish(self._ask, masked)
            arrays, numbers = self._job.mean(total.values())
        except (RoundFailed, Unreadable) as error:
            logger.warning("round %d: the model stays as it is: %s", server_round, error)
            return super().aggregate_train(server_round, failed)
        content = RecordDict({self._job.record: arrays, "metrics": MetricRecord(dict(numbers))})
        mean = Message(content, reply_to=self._orders[total.survivors[0]])
        return super().aggregate_train(server_round, [mean, *failed])

    def _number_of(self, node: int) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def _ask(self, kind: str, blobs: Mapping[int, bytes]) -> dict[int, bytes]:
        if self._grid is None:
            raise RuntimeError("SecureAggregation: has no grid before its first round")
        nodes = {number: node for node, number in self._numbers.items()}
        messages = [
            Message(RecordDict({RECORD: _packed(kind, client, blob)}), nodes[client], self._kind)
            for client, blob in blobs.items()
        ]
        answers: dict[int, bytes] = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            client = self._numbers.get(reply.metadata.src_node_id, _NOBODY)
            if reply.has_error():
                logger.warning("client %d: %s", client, foreign(str(reply.error.reason)))
                continue
            blob = _blob(reply)
            if client in blobs and blob is not None:
                answers[client] = blob
        return answers


def _packed(exchange: str, client: int, blob: bytes) -> ConfigRecord:
    return ConfigRecord({EXCHANGE: exchange, CLIENT: client, BLOB: blob})


def _blob(reply: Message) -> bytes | None:
    record = reply.content.get(RECORD)
    blob = record.get(BLOB) if isinstance(record, ConfigRecord) else None
    return blob if isinstance(blob, bytes) else None


def _check_mean(strategy: Strategy) -> None:
    own = type(strategy).aggregate_train
    if any(own is one.aggregate_train for one in _OF_A_MEAN):
        return
    known = [one.__name__ for one in _OF_A_MEAN]
    raise ValueError(
        f"SecureAggregation: {type(strategy).__name__} reads single updates, and under secure aggregation "
        f"there is only their mean: take one of {known}, or say takes_mean=True if its aggregate_train uses "
        "nothing else"
    )
