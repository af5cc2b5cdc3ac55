"""Seconds per round: the inline engine against Flower's Ray runtime.

Twice: with a client that does nothing but add one to the weights under Flower's
own FedAvg, which shows the engines alone, and with this project's app, in which
computing and packing an update cost the same on either.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from rich.console import Console
from rich.table import Table

from fl_app import client_app, server_app
from fl_app.config.compose import join_overrides, quote
from fl_app.flower import InlineGrid, run_on_ray

CLIENTS = (10, 50)
SIZES = {"100k": 100_000, "1M": 1_000_000}
HIDDEN = {"100k": 32, "1M": 325}
"""Hidden units of an MLP on 3x32x32 inputs that give about as many parameters."""
ROUNDS = {"inline": 12, "ray": 6}
ENGINES = ("inline", "ray")


def main() -> None:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a future default
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for title, seconds in (("a client that adds one", trivial_seconds), ("this app, batch 1", app_seconds)):
        table = Table(title=f"{title}: seconds per round (median after the first)")
        for column in ("clients", "parameters", *ENGINES, "ray / inline"):
            table.add_column(column, justify="right")
        for clients in CLIENTS:
            for size in SIZES:
                inline, ray = (seconds(engine, clients, size) for engine in ENGINES)
                table.add_row(str(clients), size, f"{inline:.4f}", f"{ray:.4f}", f"{ray / inline:.1f}x")
        Console().print(table)


def trivial_seconds(engine: str, clients: int, size: str) -> float:
    """Time rounds of Flower's FedAvg over clients that hardly compute."""
    ends: list[float] = []

    def round_ended(server_round: int, arrays: ArrayRecord) -> None:
        ends.append(time.perf_counter())

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        initial = ArrayRecord([np.zeros(SIZES[size], dtype=np.float32)])
        strategy.start(grid, initial, num_rounds=ROUNDS[engine], evaluate_fn=round_ended)

    _run(engine, server, _adder(), clients, {})
    return statistics.median(np.diff(ends)[1:].tolist())


def app_seconds(engine: str, clients: int, size: str) -> float:
    """Time rounds of this project's app, by its own clock."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"engine={engine}",
            f"clients={clients}",
            f"rounds={ROUNDS[engine]}",
            f"evaluate_every={ROUNDS[engine]}",
            "model=mlp",
            f"model.hidden=[{HIDDEN[size]}]",
            "defense=none",
            "attack=none",
            "batch_size=1",
            f"run_dir={quote(folder)}",
        ]
        config = {"overrides": join_overrides(overrides)}
        _run(engine, server_app.app, client_app.app, clients, config)
        result = json.loads((Path(folder) / "result.json").read_text())
    return statistics.median(row["seconds"] for row in result["rounds"][1:])


def _run(engine: str, server: ServerApp, client: ClientApp, clients: int, config: dict[str, str]) -> None:
    if engine == "ray":
        run_on_ray(server, client, clients, run_config=config)
    else:
        server(InlineGrid(client, clients, run_config=config), Context(1, 0, {}, RecordDict(), dict(config)))


def _adder() -> ClientApp:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        (weights,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        content = RecordDict(
            {"arrays": ArrayRecord([weights + 1]), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    return client


if __name__ == "__main__":
    main()
