"""Exchange of a round: orders out, replies in, the whole model for clients that lack it.

Every reply passes the `Gate` when it arrives, and every update passes `open_update` before it is summed.
Client data enters in no other way. All exchanges of a round share one deadline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_app.console.stated_failure import StatedFailure
from fl_app.console.words import foreign
from fl_app.flower.deadline import Deadline
from fl_app.results import Failure, Round
from fl_app.strategies.downlink import Downlink, raw_bytes
from fl_app.strategies.gate import Gate, check_update
from fl_app.strategies.roster import Roster
from fl_app.types import Update
from fl_app.wire import decode
from fl_app.wire.messages import (
    ENDORSE,
    IDENTIFY,
    LOCATE,
    OFFER,
    SHARE,
    TRAIN,
    MessageError,
    Reply,
    content_bytes,
    pack_secure,
    trim_reply,
    unpack_reply,
    unpack_secure,
)

logger = logging.getLogger(__name__)

Pack = Callable[[int, int], tuple[RecordDict, int]]
"""``pack(client, base)`` returns a message's content, built on version ``base``, and its payload in bytes."""
SECONDS = 3600.0
"""Default deadline of a round, in seconds."""
_PATIENCE = {IDENTIFY: 0.5, LOCATE: 0.25, OFFER: 0.25, SHARE: 0.25, TRAIN: 0.8, ENDORSE: 0.5}
"""Share of the remaining time that an exchange may take, since others follow.

A node of a deployment starts a process for each message, which takes longer than most training: it may need
as long to identify itself as for the rest of the round.
"""
_OVERHEAD = 1 << 16
"""Bytes that a blob may have beyond twice its dense size: masked numbers have twice the width."""


_NAMED = 3
"""Clients whose reasons the end of a run quotes."""


class NobodyAnswered(StatedFailure):
    """A round in which every ordered client failed; it does not count, and the run stops before it."""


class Arrived(NamedTuple):
    """Accepted replies of a round, by client."""

    good: dict[int, Reply]
    left_out: dict[int, Reply]
    """Answers to a model other than the round's."""


class Exchange:
    """Sends a round's messages and receives the replies; it names bad clients, which never stop the round."""

    def __init__(
        self, roster: Roster, downlink: Downlink, gate: Gate, *, timeout: float | None = None
    ) -> None:
        self.roster = roster
        self.downlink = downlink
        self.gate = gate
        self.deadline = Deadline(SECONDS if timeout is None else timeout, _PATIENCE)
        self._most_bytes = _OVERHEAD
        self.sampled: dict[int, int] = {}
        """Node ids of this round's clients."""
        self.unanswered: set[int] = set()
        """Clients of this round that raised an error or stayed silent."""
        self._drawn: frozenset[int] = frozenset()
        self._record: Round | None = None
        self._grid: Grid | None = None

    @property
    def record(self) -> Round:
        """The counts of the current round."""
        if self._record is None:
            raise RuntimeError("Exchange: no round has begun")
        return self._record

    def begin(self, record: Round, grid: Grid, sampled: dict[int, int], model: Update) -> None:
        """Begin a round with the drawn clients; ``model`` bounds the size of their answers."""
        self._record, self._grid, self.sampled = record, grid, sampled
        self._drawn, self.unanswered = frozenset(sampled), set()
        self._most_bytes = 2 * raw_bytes(model) + _OVERHEAD

    def messages(self, kind: str, bases: Mapping[int, int], pack: Pack) -> list[Message]:
        """Make a message for every client, given the version that it builds on, and count the bytes."""
        known: dict[int, int] = {}
        messages = []
        for client, base in bases.items():
            content, payload = pack(client, base)
            self.record.count_down(content_bytes(content, known), blob=payload)
            messages.append(Message(content, self.sampled[client], kind))
        return messages

    def send(self, messages: list[Message]) -> Iterable[Message]:
        """Send messages within the round, and return the replies that came in time."""
        if self._grid is None:
            raise RuntimeError("Exchange: has no grid before its first round")
        if not messages:
            return []
        left = self.deadline.share_of(messages[0].metadata.message_type)
        return self._grid.send_and_receive(messages, timeout=left)

    def collect(self, kind: str, replies: Iterable[Message], pack: Pack, *, counts: bool) -> Arrived:
        """Return answers by client; send the whole model to clients that lack it, and ask them again.

        ``counts``: whether answers state the number of samples that weights them.
        """
        arrived, lacking = self._sort(replies, counts)
        if lacking and self._grid is not None:
            bases = dict.fromkeys(lacking, self.downlink.nothing)
            again, still_lacking = self._sort(self.send(self.messages(kind, bases, pack)), counts)
            arrived = Arrived(arrived.good | again.good, arrived.left_out | again.left_out)
            for client in still_lacking:
                self.fail(client, "asked for the model again after it was sent")
        return arrived

    def ask(self, kind: str, blobs: Mapping[int, bytes]) -> tuple[dict[int, bytes], dict[int, str]]:
        """Send messages of secure aggregation; return the answers, and the reasons of missing ones."""
        nodes = {self.sampled[client]: client for client in blobs}
        messages = [Message(pack_secure(blobs[client]), node, kind) for node, client in nodes.items()]
        self.record.count_down(sum(content_bytes(message.content) for message in messages))
        answers: dict[int, bytes] = {}
        silent = dict.fromkeys(blobs, "no answer in time")
        for message in self.send(messages):
            client = nodes.get(message.metadata.src_node_id)
            if client is None or client in answers:
                continue
            try:
                self.receive(message)
                answers[client] = unpack_secure(message)
                del silent[client]
            except MessageError as error:
                silent[client] = str(error)
        return answers, silent

    def receive(self, message: Message) -> None:
        """Drop unrequested records of a reply and count its bytes; raise a MessageError if it is an error."""
        if message.has_error():
            raise MessageError(message.error.reason)
        trim_reply(message.content, most=self._most_bytes)
        try:
            self.record.count_up(content_bytes(message.content))
        except (ValueError, TypeError, OverflowError) as error:  # in one process anything can be in a record
            raise MessageError("message: holds values that cannot come over a network") from error

    def admit(self, client: int, message: Message, *, counts: bool) -> Reply:
        """Return the reply in a message; raise a MessageError if the gate refuses it."""
        self.receive(message)
        reply = unpack_reply(message)
        self.record.count_up(blob=len(reply.update))
        return self.gate.admit(reply, server_round=self.record.round, client=client, counts=counts)

    def fail(self, client: int, reason: str) -> None:
        """Record a client whose update is not used; keep the first reason."""
        if client in {failure.client for failure in self.record.failures}:
            return
        failure = Failure(client=client, reason=foreign(reason))
        logger.warning("round %d: client %d: %s", self.record.round, client, failure.reason)
        self.record.failures.append(failure)
        self.downlink.forget(client)

    def fail_silent(self, client: int, reason: str) -> None:
        """Record a client that gave no answer at all."""
        self.unanswered.add(client)
        self.fail(client, reason)

    def refuse_failure(self) -> None:
        """Raise `NobodyAnswered` if clients were ordered and all of them failed.

        A single one must have raised an error or stayed silent: with refused answers it could end any run.
        """
        failed = {failure.client for failure in self.record.failures}
        if not self._drawn or not self._drawn <= (failed if len(self._drawn) > 1 else self.unanswered):
            return
        reasons = [f"client {failure.client}: {failure.reason}" for failure in self.record.failures]
        more = f", and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
        raise NobodyAnswered(
            f"round {self.record.round} does not count, since all {len(self._drawn)} ordered clients failed: "
            f"{'; '.join(reasons[:_NAMED])}{more}"
        )

    def note(self, text: str) -> None:
        """Add a note for readers of the round; it may quote a client."""
        text = foreign(text)
        logger.warning("round %d: %s", self.record.round, text)
        self.record.notes.append(text)

    def _sort(self, replies: Iterable[Message], counts: bool) -> tuple[Arrived, list[int]]:
        """Split replies into answers by client and clients that need the whole model; note the rest."""
        client_of = {node: client for client, node in self.sampled.items()}
        arrived, lacking = Arrived({}, {}), list[int]()
        for message in replies:
            client = client_of.get(message.metadata.src_node_id)
            if client is None:
                # the SuperLink itself answers for a node that is gone, with an error
                said = f": {foreign(message.error.reason)}" if message.has_error() else ""
                node = message.metadata.src_node_id
                self.note(f"a reply of node {node}, which was not asked, is ignored{said}")
                continue
            try:
                reply = self.admit(client, message, counts=counts)
            except MessageError as error:
                (self.fail_silent if message.has_error() else self.fail)(client, str(error))
                continue
            if reply.answer.left_out:
                self.record.attacked = sorted({*self.record.attacked, client})
                arrived.left_out[client] = reply
            elif reply.answer.need_model:
                self.downlink.forget(client)
                lacking.append(client)
            else:
                self.downlink.confirm(client)
                arrived.good[client] = reply
        return arrived, sorted(lacking)


def open_update(reply: Reply, read: Callable[[bytes], Update], buffers: Update) -> tuple[Update, Update]:
    """Decode an update, and its ``buffers`` as doubles; raise a CodecError if it is unusable."""
    update = read(reply.update)
    beside = (
        {name: tensor.double() for name, tensor in decode(reply.buffers, buffers).items()} if buffers else {}
    )
    check_update(update, beside)
    return update, beside
