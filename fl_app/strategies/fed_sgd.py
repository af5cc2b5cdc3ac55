"""FedSGD on Flower: the base of every strategy here."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fl_app.flower.held_tensor import hold, release
from fl_app.models import ModelSpec
from fl_app.privacy import Ledger, Release
from fl_app.results import Failure, Round
from fl_app.storage.tree_file import Tree
from fl_app.strategies.aggregate import RunningSum, first_bad_tensor, undo
from fl_app.strategies.begun import Begun
from fl_app.strategies.downlink import Downlink, raw_bytes
from fl_app.strategies.roster import Roster, sample
from fl_app.training.schedules import Schedule
from fl_app.types import Update
from fl_app.wire import CodecError, decode, encode
from fl_app.wire.bound import entropy_bound
from fl_app.wire.messages import (
    TRAIN,
    Answer,
    LocationQuery,
    MessageError,
    Order,
    Reply,
    RunName,
    add_query,
    blob_size,
    content_bytes,
    pack_blob,
    pack_order,
    unpack_reply,
)

logger = logging.getLogger(__name__)


class FedSGD(Strategy):
    """One gradient per client per round; ``x <- x - lr * mean(g)``, by sample count.

    ``start`` is Flower's own. A bad client never stops a round: it is named in
    ``record.failures`` and in the log, and the others are averaged. A client
    without the previous version of the model asks for the whole one and gets it
    in the same round.
    """

    def __init__(
        self,
        model: ModelSpec,
        lr: Schedule,
        *,
        clients: int,
        parameters: Iterable[str],
        fraction: float = 1.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        facts: str = "",
    ) -> None:
        who = type(self).__name__
        if not 0 < fraction <= 1:
            raise ValueError(f"{who}: fraction must be in (0, 1], got {fraction}")
        if not 0 <= momentum < 1:
            raise ValueError(f"{who}: momentum must be in [0, 1), got {momentum}")
        if weight_decay < 0:
            raise ValueError(f"{who}: weight_decay must be at least 0, got {weight_decay}")
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.fraction = fraction
        self.records: list[Round] = []
        self.weights: Update = {}
        self.buffers: Update = {}
        self.within: Update | None = None
        """The only positions at which this round's updates may be non-zero; None: anywhere."""
        self.run_key = ""
        """By which clients keep what they must not lose; "": none of them outlives the server."""
        self.done = 0
        """The rounds of before the run was resumed: Flower counts from 1 again."""
        self.on_begin: Callable[[Begun], None] | None = None
        """Is told what is about to be asked of clients, before anything is."""
        self.roster = Roster(clients, wait=wait, answer_within=timeout)
        if downlink == "auto":
            downlink = "change" if fraction == 1 else "full"
        self.downlink = Downlink(downlink)
        self._model = model
        self._parameters = frozenset(parameters)
        self._exchange_buffers = exchange_buffers
        self._timeout = timeout
        self._seed = seed
        self._facts = pack_blob(facts.encode())
        self._velocity: Update = {}
        self._counted: dict[int, int] = {}
        self._sampled: dict[int, int] = {}
        self._locations: ConfigRecord | None = None
        self._sample: tuple[Update, int] | None = None
        self._ledger = Ledger()
        self._releases: dict[int, Release] = {}
        self._owed: dict[int, int] = {}
        self._attempt = 0
        self._grid: Grid | None = None

    # What outlives a server that is killed: everything that has a history. Draws have none, they go by
    # seed and round.

    @property
    def repeats(self) -> bool:
        """Whether a round that is trained once more gives the same bits."""
        return True

    def history(self) -> dict[str, Tree]:
        """Return what the rounds so far have left, as plain values."""
        return {
            "weights": self.weights,
            "buffers": self.buffers,
            "within": self.within,
            "records": [record.as_json() for record in self.records],
            "velocity": self._velocity,
            "counted": self._counted,
            "ledger": asdict(self._ledger),
            "releases": {client: asdict(release) for client, release in self._releases.items()},
            "owed": self._owed,
            "attempt": self._attempt,
            "downlink": self.downlink.history(),
        }

    def restore(self, history: dict[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self.weights, self.buffers = history["weights"], history["buffers"]
        self._velocity, self.within = history["velocity"], history["within"]
        self.records = [Round.model_validate(row) for row in history["records"]]
        self.done = self.records[-1].round if self.records else 0
        self._counted = history["counted"]
        self._ledger = Ledger(**history["ledger"])
        self._releases = {client: Release(**told) for client, told in history["releases"].items()}
        self._owed, self._attempt = history["owed"], history["attempt"]
        self.downlink.restore(history["downlink"])

    def begin_again(self, begun: Begun) -> None:
        """Charge what a round that was cut short may have revealed; it will be one attempt more."""
        self._attempt = begun.attempt + 1
        for client in begun.clients:
            self._owed[client] = self._owed.get(client, 0) + 1

    # What a strategy of this family may change: who takes part, what happens before the orders,
    # what is ordered, how uploads are read and combined, how the model moves.

    def draw(self, clients: list[int], server_round: int) -> list[int]:
        """Return who of ``clients`` takes part, in their order."""
        return sample(clients, self.fraction, seed=self._seed, round=server_round)

    def prepare(self, server_round: int, grid: Grid) -> None:
        """Do what must be done before the orders go out; whom the round shall do without is left out."""

    def order(self, server_round: int, client: int, base: int) -> Order:
        """Return what ``client`` is told to do."""
        return Order(
            round=server_round,
            client=client,
            lr=self.lr(server_round),
            model_hash=self._model.hash,
            version=self.downlink.version,
            base=base,
            counted=self._counted.get(client, 0),
            keep=self.downlink.mode == "change",
            model_spec=self._model.to_json() if base < 0 else "",
        )

    def locations_for(self, client: int) -> ConfigRecord | None:
        """Return what a training order to ``client`` encloses about positions."""
        return self._locations

    def plan(self) -> ConfigRecord | None:
        """Return what all training orders of this round say beside the order."""
        return None

    def deliver(self, client: int) -> bytes:
        """Return what secure aggregation has for ``client``."""
        return b""

    def read(self, blob: bytes) -> Update:
        """Return what a client uploaded."""
        return decode(blob, self.weights, within=self.within)

    def see(self, blob: bytes, client: int, weights: Update, within: Update | None) -> Update:
        """Return what an upload says of ``weights``, which is what an attacker works on.

        They are the round's, or those of a manipulated model; ``within`` are the positions
        that the order named.
        """
        return decode(blob, weights, within=within)

    def weigh(self, answer: Answer) -> float:
        """Return how much an update counts: by samples."""
        return float(answer.samples)

    def gather(self, good: dict[int, Reply]) -> tuple[RunningSum, RunningSum, list[int]]:
        """Add up the updates and the buffers that can be read, and say whose they are."""
        total, buffers, clients = RunningSum(), RunningSum(), list[int]()
        for client in sorted(good):
            reply = good[client]
            try:
                update, beside = self._open(reply)
            except CodecError as error:
                self._fail(client, str(error))
                continue
            if not clients:
                self._sample = update, len(reply.update)
            clients.append(client)
            total.add(update, self.weigh(reply.answer))
            buffers.add(beside, self.weigh(reply.answer))
        return total, buffers, clients

    def settle(self, clients: list[int]) -> bool:
        """Account for the sum over ``clients``, and say whether it may be used."""
        return True

    def average(self, total: RunningSum) -> Update:
        """Return the mean."""
        return total.over(total.weight)

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after a step of SGD with momentum and weight decay."""
        lr = self.lr(server_round)
        if self.weight_decay:
            mean = {name: g + self.weight_decay * self.weights[name] for name, g in mean.items()}
        direction = self.accelerate(mean)
        return {name: weight - lr * direction[name] for name, weight in self.weights.items()}

    def undo_step(self, before: Update, after: Update, server_round: int) -> tuple[Update, Update]:
        """Return the mean update behind a `step` from one model to the next, for who got both.

        And for each entry how far rounding may be off. The velocity of a momentum is not known to others.
        """
        direction, rounding = undo(before, after, self.lr(server_round))
        decay = self.weight_decay
        return {name: g - decay * before[name].double() for name, g in direction.items()}, rounding

    def accelerate(self, direction: Update) -> Update:
        """Return the direction with the server's momentum."""
        if not self.momentum:
            return direction
        old = self._velocity
        self._velocity = {name: self.momentum * old[name] + d if old else d for name, d in direction.items()}
        return self._velocity

    # Flower's side.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Order this round's clients to train on the current model."""
        server_round += self.done
        self._grid = grid
        self._adopt(arrays)
        self.downlink.publish(self.weights, server_round - 1, self.within)
        present = self.roster.present(grid)
        cohort = self.draw(list(present), server_round)
        self._sampled = {client: present[client] for client in cohort}
        self.records.append(Round.begin(server_round))
        if not present:
            self._note("no client is there")
        if self._attempt:
            self._note(f"this round was begun before and cut short: this is attempt {self._attempt + 1}")
        self._announce()
        self.prepare(server_round, grid)
        return self._messages(TRAIN, server_round, {c: self.downlink.base_for(c) for c in self._sampled})

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the good updates and move the model; name the clients whose update was none."""
        server_round += self.done
        record = self.records[-1]
        self._sample = None
        good = self._collect(TRAIN, server_round, replies)
        named = {failure.client for failure in record.failures} | set(record.attacked)
        for client in self._sampled.keys() - good.keys() - named:
            self._fail(client, "no answer in time")
        self._charge(good)

        total, buffers, clients = self.gather(good)
        self._attempt = 0
        record.failures.sort(key=lambda failure: failure.client or 0)
        record.clients = len(clients)
        record.dense_bytes = 2 * len(clients) * (raw_bytes(self.weights) + raw_bytes(self.buffers))
        if not self.settle(clients) or not clients:
            self._note(
                "no usable update: the model is unchanged" if not clients else "the model is unchanged"
            )
            return hold(self.weights | self.buffers), None

        self.weights = self.step(self.average(total), server_round)
        if self._exchange_buffers and self.buffers:
            self.buffers = _like(buffers.over(buffers.weight), self.buffers)
        for client in clients:
            self._counted[client] = server_round
        weights = [self.weigh(good[client].answer) for client in clients]
        record.train_loss = _mean([good[c].metrics.get("loss") for c in clients], weights)
        record.residual_norm = _mean(
            [good[c].metrics.get("residual_norm") for c in clients], [1.0] * len(clients)
        )
        record.gradient_norm, record.pruned_share = (
            _largest([good[c].metrics.get(name) for c in clients])
            for name in ("gradient_norm", "pruned_share")
        )
        metrics = MetricRecord({} if record.train_loss is None else {"train_loss": record.train_loss})
        return hold(self.weights | self.buffers), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nothing of the clients: the server evaluates on its own test set."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing: no client was asked."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        logger.info(
            "%s: %d clients, fraction %g, momentum %g, weight decay %g, downlink %s",
            type(self).__name__,
            self.roster.expected,
            self.fraction,
            self.momentum,
            self.weight_decay,
            self.downlink.mode,
        )

    def measure_bounds(self) -> None:
        """Note how far the current round's messages are from their entropy bound; this takes a while."""
        record, extra = self.records[-1], blob_size(self._locations) if self._locations else 0
        if self._sample is not None:
            update, size = self._sample
            record.uplink_to_bound = size / (entropy_bound(update, within=self.within) or math.nan)
            record.downlink_to_bound = self.downlink.to_bound(self.within, extra)

    # The moves between the two.

    def _adopt(self, arrays: ArrayRecord) -> None:
        tensors = release(arrays)
        self.weights = {name: tensor for name, tensor in tensors.items() if name in self._parameters}
        self.buffers = {name: tensor for name, tensor in tensors.items() if name not in self._parameters}

    def _announce(self, *, unmasking: bool = False) -> None:
        if self.on_begin is not None:
            self.on_begin(Begun(self.records[-1].round, self._attempt, list(self._sampled), unmasking))

    def _messages(
        self, kind: str, server_round: int, bases: dict[int, int], query: LocationQuery | None = None
    ) -> list[Message]:
        """Make an order for every client, given the version that it builds on."""
        record, known = self.records[-1], dict[int, int]()
        buffers = pack_blob(encode(self.buffers)) if self.buffers and self._exchange_buffers else None
        plan = self.plan() if kind == TRAIN else None
        run = RunName(self.run_key, self._attempt) if self.run_key else None
        messages = []
        for client, base in bases.items():
            model = self.downlink.blob(base)
            locations = self.locations_for(client) if kind == TRAIN else None
            secure = self.deliver(client) if kind == TRAIN else b""
            order = self.order(server_round, client, base)
            facts = self._facts if client in self.roster.own_data else None
            content = pack_order(order, model, buffers, locations, plan, secure, facts, run)
            if query is not None:
                add_query(content, query)
            blobs = blob_size(model) + (blob_size(locations) if locations else 0)
            record.count_down(content_bytes(content, known), blob=blobs)
            messages.append(Message(content, self._sampled[client], kind))
        return messages

    def _collect(
        self, kind: str, server_round: int, replies: Iterable[Message], query: LocationQuery | None = None
    ) -> dict[int, Reply]:
        """Return answers by client; who lacks the model gets it, and is waited for once more."""
        good, lacking = self._sort(server_round, replies)
        if lacking and self._grid is not None:
            bases = dict.fromkeys(lacking, self.downlink.nothing)
            messages = self._messages(kind, server_round, bases, query)
            answered, still_lacking = self._sort(
                server_round, self._grid.send_and_receive(messages, timeout=self._timeout)
            )
            good |= answered
            for client in still_lacking:
                self._fail(client, "asked for the model again after it was sent")
        return good

    def _sort(self, server_round: int, replies: Iterable[Message]) -> tuple[dict[int, Reply], list[int]]:
        """Split replies into answers by client and clients that need the whole model; note the rest."""
        client_of = {node: client for client, node in self._sampled.items()}
        good: dict[int, Reply] = {}
        lacking: list[int] = []
        for message in replies:
            client = client_of.get(message.metadata.src_node_id)
            if client is None:
                # a SuperLink answers itself, with an error, for a node that is gone
                said = f": {message.error.reason}" if message.has_error() else ""
                node = message.metadata.src_node_id
                self._note(f"a reply of node {node}, which was not asked, is ignored{said}")
                continue
            try:
                reply = self._check(server_round, client, message)
            except MessageError as error:
                self._fail(client, str(error))
                continue
            if reply.answer.left_out:
                self._leave_out(client, reply)
            elif reply.answer.need_model:
                self.downlink.forget(client)
                lacking.append(client)
            else:
                self.downlink.confirm(client)
                good[client] = reply
        return good, sorted(lacking)

    def _check(self, server_round: int, client: int, message: Message) -> Reply:
        if message.has_error():
            raise MessageError(message.error.reason)
        record = self.records[-1]
        record.count_up(content_bytes(message.content))
        reply = unpack_reply(message)
        record.count_up(blob=len(reply.update))
        answer = reply.answer
        if (answer.round, answer.client) != (server_round, client):
            raise MessageError(
                f"expected an answer of client {client} to round {server_round}, "
                f"got one of client {answer.client} to round {answer.round}"
            )
        if not (answer.need_model or answer.left_out) and not self.weigh(answer) > 0:
            raise MessageError(f"samples must be at least 1, got {answer.samples}")
        return reply

    def _charge(self, good: dict[int, Reply]) -> None:
        """Add up what this round's clients released; who failed may have released it too."""
        record = self.records[-1]
        for client in self._sampled:
            release = good[client].release if client in good else self._releases.get(client)
            if release is None:
                continue
            try:
                self._ledger.charge(client, release)
            except ValueError as error:
                self._fail(client, str(error))
                good.pop(client, None)
            else:
                self._releases[client] = release
        for client in self._owed.keys() & self._releases.keys():
            for _ in range(self._owed.pop(client)):
                self._ledger.charge(client, self._releases[client])
        record.epsilon = record.epsilon_server = self._ledger.epsilon()

    def _open(self, reply: Reply) -> tuple[Update, Update]:
        """Decode an update and the buffers that came with it, as floats to be averaged."""
        update = self.read(reply.update)
        wanted = self.buffers if self._exchange_buffers else {}
        buffers = _floats(decode(reply.buffers, wanted)) if wanted else {}
        bad = first_bad_tensor(update) or first_bad_tensor(buffers)
        if bad is not None:
            raise CodecError(f"{bad} holds NaN or infinity")
        return update, buffers

    def _leave_out(self, client: int, reply: Reply) -> None:
        """Do without an update of another model; what it released is charged all the same."""
        record = self.records[-1]
        record.attacked = sorted({*record.attacked, client})
        if reply.release is not None:
            self._releases[client] = reply.release

    def _fail(self, client: int, reason: str) -> None:
        record = self.records[-1]
        if client in {failure.client for failure in record.failures}:
            return  # what came first says why
        logger.warning("round %d: client %d: %s", record.round, client, reason)
        record.failures.append(Failure(client=client, reason=reason))
        self.downlink.forget(client)

    def _note(self, text: str) -> None:
        record = self.records[-1]
        logger.warning("round %d: %s", record.round, text)
        record.notes.append(text)


def _floats(buffers: Update) -> Update:
    return {name: tensor.double() for name, tensor in buffers.items()}


def _like(tensors: Update, buffers: Update) -> Update:
    """Return ``tensors`` in the types of ``buffers``; counters are rounded."""

    def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return (tensor if dtype.is_floating_point else tensor.round()).to(dtype)

    return {name: cast(tensor, buffers[name].dtype) for name, tensor in tensors.items()}


def _largest(values: list[float | None]) -> float | None:
    """Return the largest number that may be a norm or a share: whatever else a client says is not counted."""
    return max((value for value in values if value is not None and 0 <= value < math.inf), default=None)


def _mean(values: list[float | None], weights: list[float]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
