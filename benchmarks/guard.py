"""The price of a node's policy: a client's round under the default policy against one that trusts its run.

Rounds of both go in turns, in one process, on the same models. With a folder of its own, a guarded client
writes its account and its log to disk before each answer.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Message
from rich.console import Console
from rich.table import Table

from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import join_overrides
from fl_app.flower import InlineGrid
from fl_app.models import ModelSpec
from fl_app.training import parameters
from fl_app.types import Update
from fl_app.wire import encode
from fl_app.wire.messages import TRAIN, Order, pack_blob, pack_order

CLIENTS = 10
CASES = {
    "lenet": ("model=lenet", 200),
    "lenet, 5 epochs": ("model=lenet strategy=fed_avg training.epochs=5", 20),
    "resnet18": ("model=resnet18", 4),
}
"""Overrides and measured rounds."""
STEP = 1e-3
"""The server's move from round to round, relative to a weight."""


def main() -> None:
    """Print medians and their ratio."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    table = Table(title=f"milliseconds of {CLIENTS} clients' round, batch 32, DGP with error feedback")
    for column in ("model", "memory", "trusts the run", "default policy", "ratio"):
        table.add_column(column, justify="right")
    for name, (overrides, rounds) in CASES.items():
        for kept in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                own = {"state-dir": folder} if kept else {}
                free, guarded = compare(overrides, rounds, own)
            row = (f"{1000 * free:.1f}", f"{1000 * guarded:.1f}", f"{guarded / free:.3f}")
            table.add_row(name, "on disk" if kept else "Flower's", *row)
    Console().print(table)


def compare(overrides: str, rounds: int, own: Mapping[str, Any]) -> tuple[float, float]:
    """Return the median seconds of a round without and with a policy."""
    text = join_overrides(
        [*overrides.split(), "attack=none", f"clients={CLIENTS}", "bn=frozen", "rounds=9999"]
    )
    spec = client_parts(text).model
    built = server_parts(text).model
    weights = {name: p.detach().clone() for name, p in parameters(built).items()}
    buffers = dict(built.named_buffers())
    grids = []
    for trust in (True, False):
        folder = {key: f"{value}/{trust}" for key, value in own.items()}
        config = {"trust-config": trust, "allow-audit": False, **folder}
        grids.append(InlineGrid(app, CLIENTS, run_config={"overrides": text}, node_config=config))
    times: list[list[float]] = [[], []]
    for round in range(1, rounds + 2):
        for number in (0, 1) if round % 2 else (1, 0):
            times[number].append(_round(grids[number], spec, weights, buffers, round))
        weights = {name: t * (1 + STEP * torch.randn_like(t)) for name, t in weights.items()}
    free, guarded = (statistics.median(measured[1:]) for measured in times)
    return free, guarded


def _round(grid: InlineGrid, spec: ModelSpec, weights: Update, buffers: Update, round: int) -> float:
    blob, stored = pack_blob(encode(weights)), pack_blob(encode(buffers)) if buffers else None
    messages = []
    for client, node in enumerate(grid.get_node_ids()):
        order = Order(round, client, 0.1, spec.hash, round, counted=round - 1, model_spec=spec.to_json())
        messages.append(Message(pack_order(order, blob, stored), node, TRAIN))
    start = time.process_time()
    replies = list(grid.send_and_receive(messages))
    seconds = time.process_time() - start
    errors = [reply.error.reason for reply in replies if reply.has_error()]
    if errors or len(replies) != CLIENTS:
        raise RuntimeError(f"guard: expected {CLIENTS} answers, got {len(replies)}; {errors[:1]}")
    return seconds


if __name__ == "__main__":
    main()
