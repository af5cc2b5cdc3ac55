"""One secure round of this project against Flower's SecAgg+: processor time and bytes, by client and server.

``python -m benchmarks.secure_round [SECONDS | growth]``. Both sum the same vectors, in one process, at the
same resolution. Processor time of a client is what its own calls take; moving messages counts for nobody.
Bytes are those of serialised message contents, without the model, which every way of aggregating sends.

With shares for everyone, the time of SecAgg+ goes with the cube of the number of clients: its Shamir is pure
Python, over a PEM file in blocks of 16 bytes. Small rounds say how long the whole one would take; if that is
more than SECONDS (60), the largest round within SECONDS is measured instead, of both.

``growth`` measures our rounds of 10, 100 and 1,000 clients, beside plain uploads of the same vectors.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fl_app.flower import InlineGrid
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.internals import serialised_size
from fl_app.secagg import (
    SecureRound,
    Terms,
    fit_fixed_point,
    fit_neighbourhood,
    mask,
    offer,
    share,
    smallest_threshold,
    unmask,
)
from fl_app.wire import decode, encode
from fl_app.wire.messages import VALUES, pack_blob

CLIENTS, SIZE = 100, 10_000
GROWTH = ((10, 10_000), (100, 10_000), (1000, 10_000), (100, 100_000))
"""Clients and values of the rounds by which growth is shown."""
DROPPED = 0.2
"""The share of clients that vanish before they send a vector, where some do."""
SECONDS = 60.0
PROBES = (10, 20)
"""Clients of the small rounds of SecAgg+ from which the time of a larger one is told."""
BOUND, STEP = 2.0, 2.0**-14
EXCHANGES = ("keys", "shares", "masked vectors", "unmasking")
MASKED = EXCHANGES.index("masked vectors")
JOB = bytes(32)

Vectors = NDArray[np.float32]
"""One row for each client."""


@dataclass
class Exchange:
    """Cost of one exchange: processor seconds and bytes, by client and for the server."""

    seconds: dict[int, float] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    server: float = 0.0


@dataclass
class Measured:
    """One round."""

    protocol: str
    clients: int
    size: int
    dropped: frozenset[int] = frozenset()
    exchanges: list[Exchange] = field(default_factory=lambda: [Exchange() for _ in EXCHANGES])
    apart: float = math.nan
    """Largest error of an entry of the sum against the survivors' vectors, in steps of the grid."""

    @property
    def survivors(self) -> list[int]:
        """Clients that took part to the end; their costs are averaged."""
        return [client for client in range(self.clients) if client not in self.dropped]

    @property
    def client_seconds(self) -> float:
        """The mean over the survivors."""
        return sum(self.mean("seconds", exchange) for exchange in self.exchanges)

    @property
    def server_seconds(self) -> float:
        """The whole round."""
        return sum(exchange.server for exchange in self.exchanges)

    @property
    def up(self) -> float:
        """Bytes, the mean over the survivors."""
        return sum(self.mean("up", exchange) for exchange in self.exchanges)

    @property
    def down(self) -> float:
        """Bytes without the model, the mean over the survivors."""
        return sum(self.mean("down", exchange) for exchange in self.exchanges)

    @property
    def slowest(self) -> float:
        """Seconds of the survivor that computed longest."""
        return max(sum(exchange.seconds[client] for exchange in self.exchanges) for client in self.survivors)

    def mean(self, what: str, exchange: Exchange) -> float:
        """Return the mean of ``seconds``, ``up`` or ``down`` over the survivors."""
        values = getattr(exchange, what)
        return statistics.fmean(values[client] for client in self.survivors)


def main(clients: int = CLIENTS, size: int = SIZE, seconds: float = SECONDS) -> None:
    """Print what our round costs, and what it costs beside SecAgg+."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    vectors = draw(clients, size)
    run_ours(draw(5, 50))  # first calls are slow
    print_exchanges(run_ours(vectors))
    print_exchanges(run_ours(vectors, dropped=range(0, clients, round(1 / DROPPED))))
    others = [run_secaggplus(vectors[:n], shares=n) for n in PROBES if n < clients]
    fitting, expected = choose_clients(clients, seconds, others)
    if fitting not in [other.clients for other in others]:
        others.append(run_secaggplus(vectors[:fitting], shares=fitting))
    few = few_shares(clients)
    if few < clients:
        others.append(run_secaggplus(vectors, shares=few))
    print_comparison([(run_ours(vectors[: other.clients]), other) for other in others])
    if fitting < clients:
        print(
            f"SecAgg+ with shares for all {clients} clients was not run. By the cube of the number of\n"
            f"clients it would take {expected:.0f} s of processor time, more than {seconds:.0f} s. "
            f"So {fitting} clients of both."
        )
    if few < clients:
        print(
            f"With {few} shares a client has masks and shares with {few - 1} neighbours only: that is the\n"
            f"plus of SecAgg+. The server and {threshold_of(few)} of the {few} can read its vector; "
            f"with shares for all it takes {smallest_threshold(clients)} of {clients}."
        )
    print(
        "Only ours: masks under keys of 256 bits (AES-256-CTR). Masks of SecAgg+ come from 32-bit seeds of\n"
        "a Mersenne Twister; all of them can be tried."
    )


def draw(clients: int, size: int) -> Vectors:
    """Return vectors within the bound."""
    return np.random.default_rng(0).uniform(-BOUND, BOUND, (clients, size)).astype(np.float32)


def run_ours(vectors: Vectors, dropped: Collection[int] = ()) -> Measured:
    """Run one round of `fl_app.secagg`, and check its sum."""
    clients, size = vectors.shape
    measured = Measured("ours", clients, size, frozenset(dropped))
    fixed_point = fit_fixed_point(bound=BOUND, step=STEP, clients=clients)
    everyone = tuple(range(clients))
    terms = Terms(
        os.urandom(16),
        1,
        0,
        JOB,
        everyone,
        smallest_threshold(clients),
        size,
        fixed_point,
        neighbourhood=fit_neighbourhood(clients),
    )
    server = SecureRound(terms)
    states: dict[int, bytes] = {}
    answers = (
        lambda client, message: offer(message, client=client),
        lambda client, message: share(states[client], message),
        lambda client, message: mask(states[client], message, vectors[client], job=JOB),
        lambda client, message: unmask(states[client], message),
    )
    collectors: tuple[Callable, ...] = (
        server.collect_adverts,
        server.collect_shares,
        server.collect_masked,
        server.collect_unmasking,
    )
    with _server_time(measured.exchanges[0]):
        outcome: Any = server.invite()
    for number, exchange in enumerate(measured.exchanges):
        replies = {}
        for client, message in outcome.items():
            if number == MASKED and client in measured.dropped:
                continue
            start = time.process_time()
            states[client], replies[client] = answers[number](client, message)
            exchange.seconds[client] = time.process_time() - start
            exchange.down[client] = content_size(message)
            exchange.up[client] = content_size(replies[client])
        with _server_time(exchange):
            outcome = collectors[number](replies)
    if list(outcome.survivors) != measured.survivors:
        raise RuntimeError(f"benchmarks.secure_round: expected {measured.survivors}, got {outcome.survivors}")
    multiples = np.rint(vectors[measured.survivors].astype(np.float64) / STEP).astype(np.int64)
    measured.apart = float(np.abs(fixed_point.signed(outcome.words) - multiples.sum(axis=0)).max())
    if measured.apart:
        raise RuntimeError(f"benchmarks.secure_round: our sum is off by {measured.apart} steps")
    return measured


def run_plain(vectors: Vectors) -> Measured:
    """Upload the vectors as they are, in the project's own packing, and sum them."""
    clients, size = vectors.shape
    measured = Measured("plain", clients, size, exchanges=[Exchange()])
    (exchange,) = measured.exchanges
    total = torch.zeros(size)
    for client in range(clients):
        start = time.process_time()
        blob = encode({VALUES: torch.from_numpy(vectors[client])})
        exchange.seconds[client] = time.process_time() - start
        exchange.up[client], exchange.down[client] = content_size(blob), 0
        with _server_time(exchange):
            total += decode(blob, {VALUES: torch.empty(size)})[VALUES]
    measured.apart = float((total - torch.from_numpy(vectors).sum(0)).abs().max()) / STEP
    return measured


def print_growth(rounds: Iterable[tuple[int, int]] = GROWTH) -> None:
    """Print what our rounds cost a client and the server by the size of the cohort, and a plain upload."""
    table = Table(title="processor time and bytes by the size of the cohort; plain in brackets")
    columns = ("clients", "values", "neighbours", "client ms", "server ms each", "bytes up", "down")
    for column in (*columns, "without vector"):
        table.add_column(column, justify="right")
    for clients, size in rounds:
        vectors = draw(clients, size)
        ours, bare = run_ours(vectors), run_plain(vectors)
        near = fit_neighbourhood(clients)
        table.add_row(
            f"{clients:,}",
            f"{size:,}",
            str(clients - 1 if near is None else near.degree),
            f"{1e3 * ours.client_seconds:.1f} ({1e3 * bare.client_seconds:.2f})",
            f"{1e3 * ours.server_seconds / clients:.2f} ({1e3 * bare.server_seconds / clients:.2f})",
            f"{ours.up:,.0f} ({bare.up:,.0f})",
            f"{ours.down:,.0f}",
            f"{ours.up - ours.mean('up', ours.exchanges[MASKED]):,.0f}",
        )
    Console(width=132).print(table)


def content_size(blob: bytes) -> int:
    """Return the bytes of the content of a Flower message that carries ``blob``."""
    return serialised_size(RecordDict({"secagg": pack_blob(blob)}))


def run_secaggplus(vectors: Vectors, *, shares: int) -> Measured:
    """Run one round of Flower's SecAgg+ on the same grid of numbers, and check its sum.

    Every client gives shares to ``shares - 1`` others. The server has no model to send, so its
    messages are the protocol's own.
    """
    clients, size = vectors.shape
    measured = Measured("SecAgg+" if shares == clients else f"SecAgg+, {shares} shares", clients, size)
    inline = InlineGrid(_vector_app(vectors, measured.exchanges), clients)
    workflow = SecAggPlusWorkflow(
        shares,
        threshold_of(shares),
        max_weight=1.0,
        clipping_range=BOUND,
        quantization_range=round(2 * BOUND / STEP),
    )

    def fit(grid: Grid, context: Context) -> None:
        metered = _MeteredGrid(grid, measured.exchanges)
        workflow(metered, context)
        metered.charge_server()

    means: list[list[NDArray]] = []
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters([]),
        evaluate_fn=lambda server_round, mean, config: means.append(mean),
    )
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy)
    DefaultWorkflow(fit_workflow=fit)(inline, context)
    if not means or not means[-1]:
        raise RuntimeError(f"benchmarks.secure_round: SecAgg+ with {clients} clients gave no sum")
    exact = vectors.astype(np.float64).sum(axis=0)
    measured.apart = float(np.abs(clients * means[-1][0] - exact).max() / STEP)
    if measured.apart > clients:  # each client rounds at random, by less than a step
        raise RuntimeError(f"benchmarks.secure_round: the sum of SecAgg+ is off by {measured.apart} steps")
    return measured


def threshold_of(shares: int) -> int:
    """Return the threshold that our own rounds would have, as far as SecAgg+ lets one choose it."""
    return min(smallest_threshold(shares), shares - 1)


def few_shares(clients: int) -> int:
    """Return the odd number of shares next above three times the logarithm of the number of clients."""
    return math.ceil(3 * math.log2(clients)) | 1


def choose_clients(clients: int, seconds: float, probes: list[Measured]) -> tuple[int, float]:
    """Return how many clients SecAgg+ can have within ``seconds``, and the seconds that all would take.

    Processor time, of the server and all clients, by the cube from the largest of the probes. The
    number is that of all clients, or a multiple of ten, or that of this probe.
    """
    if not probes:
        return clients, math.nan
    probe = probes[-1]
    unit = (probe.server_seconds + probe.clients * probe.client_seconds) / probe.clients**3
    fitting = [n for n in (*range(10, clients, 10), clients) if unit * n**3 <= seconds]
    return max([probe.clients, *fitting]), unit * clients**3


def print_exchanges(measured: Measured) -> None:
    """Print the costs of one of our rounds by exchange."""
    gone = f", {len(measured.dropped)} vanish before they send a vector" if measured.dropped else ""
    table = Table(title=f"ours: {measured.clients} clients x {measured.size:,} values{gone}")
    columns = ("exchange", "client ms", "at most", "server ms", "bytes up", "down")
    for column in columns:
        table.add_column(column, justify="left" if column == "exchange" else "right")
    for name, exchange in zip(EXCHANGES, measured.exchanges, strict=True):
        table.add_row(
            name,
            f"{1e3 * measured.mean('seconds', exchange):.2f}",
            f"{1e3 * max(exchange.seconds.values()):.2f}",
            f"{1e3 * exchange.server:.1f}",
            f"{measured.mean('up', exchange):,.0f}",
            f"{measured.mean('down', exchange):,.0f}",
        )
    table.add_section()
    table.add_row(
        "together",
        f"{1e3 * measured.client_seconds:.2f}",
        f"{1e3 * measured.slowest:.2f}",
        f"{1e3 * measured.server_seconds:.1f}",
        f"{measured.up:,.0f}",
        f"{measured.down:,.0f}",
    )
    Console().print(table)
    print(
        f"The sum is exact. Up: {measured.up / plain(measured):.3f} of float32; "
        f"both ways with the model: {of_plain(measured):.3f} of the plain exchange.\n"
    )


def print_comparison(pairs: list[tuple[Measured, Measured]]) -> None:
    """Print pairs of rounds of the same size, and their ratios."""
    table = Table(title=f"a round of {pairs[0][0].size:,} values: processor seconds, bytes of one client")
    columns = (
        "clients",
        "protocol",
        "client s",
        "at most",
        "server s",
        "up",
        "down",
        "up / plain",
        "both / plain",
    )
    for column in (*columns, "sum off by"):
        table.add_column(column, justify="left" if column == "protocol" else "right")
    for pair in pairs:
        for measured in pair:
            table.add_row(
                str(measured.clients),
                measured.protocol,
                f"{measured.client_seconds:.4f}",
                f"{measured.slowest:.4f}",
                f"{measured.server_seconds:.3f}",
                f"{measured.up:,.0f}",
                f"{measured.down:,.0f}",
                f"{measured.up / plain(measured):.2f}",
                f"{of_plain(measured):.2f}",
                f"{measured.apart:.1f} steps" if measured.apart else "0",
            )
        ours, other = pair
        table.add_row(
            "",
            "ours / SecAgg+",
            f"{ours.client_seconds / other.client_seconds:.4f}",
            f"{ours.slowest / other.slowest:.4f}",
            f"{ours.server_seconds / other.server_seconds:.4f}",
            f"{ours.up / other.up:.3f}",
            f"{ours.down / other.down:.3f}",
            "",
            f"{of_plain(ours) / of_plain(other):.3f}",
            "",
            end_section=True,
        )
    Console(width=132).print(table)


def plain(measured: Measured) -> int:
    """Return the bytes of the vector as float32; as many as those of the model."""
    return 4 * measured.size


def of_plain(measured: Measured) -> float:
    """Return the bytes both ways, the model included, in those of sending model and vector as float32."""
    return (measured.up + measured.down + plain(measured)) / (2 * plain(measured))


@contextmanager
def _server_time(exchange: Exchange) -> Iterator[None]:
    start = time.process_time()
    yield
    exchange.server += time.process_time() - start


def _vector_app(vectors: Vectors, exchanges: list[Exchange]) -> ClientApp:
    """Return clients that send their vector by SecAgg+ and note what that cost."""

    class Holder(NumPyClient):
        def __init__(self, client: int) -> None:
            self.client = client

        def fit(self, parameters: object, config: object) -> tuple[list[Vectors], int, dict]:
            return [vectors[self.client]], 1, {}

    def make_client(context: Context) -> Client:
        return Holder(int(context.node_config["partition-id"])).to_client()

    def meter(
        message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        client = int(context.node_config["partition-id"])
        exchange = next(exchange for exchange in exchanges if client not in exchange.up)
        exchange.down[client] = serialised_size(message.content)
        start = time.process_time()
        reply = call_next(message, context)
        exchange.seconds[client] = time.process_time() - start
        exchange.up[client] = serialised_size(reply.content)
        return reply

    return ClientApp(client_fn=make_client, mods=[meter, secaggplus_mod])


class _MeteredGrid(ForwardingGrid):
    """Charges the server for what happens between two exchanges, under the name of the earlier one."""

    def __init__(self, grid: Grid, exchanges: list[Exchange]) -> None:
        super().__init__(grid)
        self._exchanges = exchanges
        self._done = 0
        self._start = time.process_time()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        self.charge_server()
        replies = super().send_and_receive(messages, timeout=timeout)
        self._done += 1
        self._start = time.process_time()
        return replies

    def charge_server(self) -> None:
        """Note the time since the last exchange."""
        self._exchanges[max(self._done - 1, 0)].server += time.process_time() - self._start


if __name__ == "__main__":
    if sys.argv[1:] == ["growth"]:
        print_growth()
        sys.exit()
    main(seconds=float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
