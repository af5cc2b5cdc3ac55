"""Rounds with a hostile client: their time, their memory, and the model that the others train.

``python -m benchmarks.hostile_peers`` prints the table of docs/security.md. Each kind of hostile client is
compared with a client that fails in the same exchanges: the others' model has to be the same, bit for bit.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fl_app.client_app import app as honest_app
from fl_app.config.build import server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.strategies import NoUpdateUsed
from fl_app.wire.messages import EVALUATE, IDENTIFY, LOCATE, OFFER, SHARE, TRAIN, UNMASK, pack_blob

CLIENTS, ROUNDS, LIAR = 5, 2, 2
SETTING = (
    f"clients={CLIENTS} rounds={ROUNDS} batch_size=4 lr=0.1 attack=none threads=1 "
    "data.size=8 data.train_per_class=8 data.test_per_class=2 model=mlp model.hidden=[8]"
)
PLAIN, POSITIONS, SECURE = "defense=none", "defense=adgp", "defense=fl_std secagg=on"
EVALUATION = "fraction_evaluate=1.0"
_LATER = {PLAIN: (TRAIN,), POSITIONS: (LOCATE, TRAIN), SECURE: (OFFER, SHARE, TRAIN, UNMASK)}
_TEXT = "\x1b[2J\x07\u202e\u0000\r\n<script>" * 400_000
"""Five million signs, none of which belongs in a log."""

Lie = Callable[[Message], RecordDict | Error]


@dataclass(frozen=True)
class Peer:
    """A kind of hostile client: the content that it sends in the place of each honest reply."""

    lie: Lie
    kinds: Collection[str] = (TRAIN,)
    """Types of the messages that it answers with a lie."""
    overrides: str = PLAIN


@dataclass(frozen=True)
class Rounds:
    """A run: its weights, seconds and growth of memory."""

    weights: Mapping[str, Tensor]
    seconds: float
    """Processor time."""
    grown: int
    """Bytes by which the process's peak grew."""
    failures: tuple[str, ...]


def answer(**numbers: object) -> Lie:
    """Change numbers of the answer; they may be of any type."""

    def lie(reply: Message) -> RecordDict:
        known = dict(reply.content["answer"].items())
        reply.content["answer"] = ConfigRecord(known | numbers)
        return reply.content

    return lie


def more(record: ConfigRecord | MetricRecord | ArrayRecord, name: str = "junk") -> Lie:
    """Add a record, or put it in the place of the one with its name."""

    def lie(reply: Message) -> RecordDict:
        reply.content[name] = record
        return reply.content

    return lie


def retyped(reply: Message) -> RecordDict:
    """Send every record as another kind of record."""
    return RecordDict(
        {
            name: MetricRecord({"x": 1}) if isinstance(record, ConfigRecord) else ConfigRecord({"x": b"1"})
            for name, record in reply.content.items()
        }
    )


def cut(reply: Message) -> RecordDict:
    """Leave every record empty."""
    return RecordDict({name: type(record)() for name, record in reply.content.items()})


def nothing(reply: Message) -> RecordDict:
    """Send no record at all."""
    return RecordDict()


def loud(reply: Message) -> Error:
    """Fail with a long text of control characters."""
    return Error(code=0, reason=_TEXT)


def quiet(reply: Message) -> Error:
    """Fail."""
    return Error(code=0, reason="gone")


PEERS: dict[str, Peer] = {
    "no record, in every exchange": Peer(nothing, (IDENTIFY, *_LATER[PLAIN])),
    "no record, after its name": Peer(nothing, _LATER[POSITIONS], POSITIONS),
    "records of the wrong kind": Peer(retyped, _LATER[POSITIONS], POSITIONS),
    "records of the wrong kind to offers of keys": Peer(retyped, (OFFER,), SECURE),
    "empty records to orders under masks": Peer(cut, (TRAIN,), SECURE),
    "empty records": Peer(cut, _LATER[PLAIN]),
    "an error of five million control characters": Peer(loud, _LATER[PLAIN]),
    "the same to offers of keys": Peer(loud, (OFFER,), SECURE),
    "a client that is a fraction": Peer(answer(client=2.0)),
    "a client that is a truth value": Peer(answer(client=True)),
    "a round that is a list": Peer(answer(round=[1] * 1_000_000)),
    "samples beyond 64 bits": Peer(answer(samples=2**64)),
    "samples in a text of 20 MB": Peer(answer(samples="9" * (20 << 20))),
    "a key of control characters": Peer(answer(**{_TEXT[:1000]: 1})),
    "300,000 metrics": Peer(more(MetricRecord({f"m{i}": i for i in range(300_000)}), "metrics")),
    "an evaluation of endless samples": Peer(
        more(MetricRecord({"accuracy": 1.0, "loss": 1e308, "num-examples": 1e300}), "metrics"),
        (EVALUATE,),
        EVALUATION,
    ),
    "50 MB beside an evaluation": Peer(more(ConfigRecord({"x": bytes(50 << 20)})), (EVALUATE,), EVALUATION),
    "an update of 8 MB of zeros": Peer(more(pack_blob(bytes(8 << 20)), "update")),
}


class _App(ClientApp):
    """The real client app, but one client lies."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    def __call__(self, message: Message, context: Context) -> Message:
        reply = honest_app(message, context)
        mine = int(context.node_config["partition-id"]) == LIAR
        if not mine or message.metadata.message_type not in self._peer.kinds:
            return reply
        said = self._peer.lie(reply)
        return Message(said, reply_to=message)


def run(peer: Peer) -> Rounds:
    """Train with a peer among the clients."""
    text = f"{SETTING} {peer.overrides}"
    parts = server_parts(text, WHOLE)
    grid = InlineGrid(_App(peer), CLIENTS, run_config={"overrides": text})
    before, began = _peak(), time.process_time()
    with suppress(NoUpdateUsed):
        parts.strategy.start(
            grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=parts.config["rounds"]
        )
    return Rounds(
        dict(parts.strategy.weights),
        time.process_time() - began,
        _peak() - before,
        tuple(failure.reason for record in parts.strategy.records for failure in record.failures),
    )


@lru_cache
def undisturbed(overrides: str, kinds: Collection[str]) -> Rounds:
    """Return a run in which the same client merely fails in the same exchanges."""
    return run(Peer(quiet, kinds, overrides))


def same_model(one: Rounds, other: Rounds) -> bool:
    """Return whether two runs trained the same model, bit for bit."""
    return all(torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())


def _peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Print the table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    table = Table(title=f"{ROUNDS} rounds of {CLIENTS} clients, on {os.cpu_count()} processors")
    for column in (
        "one client sends",
        "run",
        "CPU s",
        "CPU s if it fails",
        "peak grows by MB",
        "others' model",
    ):
        table.add_column(column)
    for peer in PEERS.values():
        undisturbed(peer.overrides, peer.kinds)
    for name, peer in PEERS.items():
        plain, disturbed = undisturbed(peer.overrides, peer.kinds), run(peer)
        table.add_row(
            name,
            peer.overrides,
            f"{disturbed.seconds:.2f}",
            f"{plain.seconds:.2f}",
            f"{disturbed.grown / 2**20:.0f}",
            "the same" if same_model(plain, disturbed) else "ANOTHER",
        )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
