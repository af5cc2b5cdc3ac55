"""Bytes of a round per client, both ways: Table 3 of the ADGP paper on real messages.

``python -m benchmarks.communication [model …] [--methods …] [--data FOLDER] [--out FILE]``. Ten clients,
batch 32, lr 0.1; the mean of rounds 2 to 11 (the first sends the whole model). The
share is that of raw float32 both ways. Beside it stands the paper's way to count:
positions at their entropy and every value as four raw bytes. Rows are appended to
FILE as they come, and those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import Message
from torch import Tensor

from benchmarks.paper_table import PAPER
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import quote
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.types import Update
from fl_app.wire import decode, decode_masks, encode
from fl_app.wire.bound import entropy_bound
from fl_app.wire.messages import LOCATE, TRAIN, read_locations, unpack_reply

MODELS = ("resnet18", "vgg13", "lenet")
METHODS = ("none", "soteria", "precode", "ats", "gaussian", "topk", "dgp", "adgp")
ROUNDS = 11
CLIENTS = 10
# the Jacobian of 512 features in every step would take days on a CPU; what it leaves out does not
# depend on the batch, and what is dense for two clients is so for ten
SMALL_SOTERIA = {"clients": 2, "batch_size": 1, "rounds": 3}


class _Watch:
    """A tap that measures the updates and the locations of every round but the first."""

    def __init__(self, weights: Any) -> None:
        self._weights = weights
        self.raw_up: list[float] = []
        self.raw_locations: list[float] = []
        self.positions: list[float] = []

    def on_send(self, message: Message) -> Message:
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        if reply.has_error():
            raise RuntimeError(f"benchmarks.communication: {reply.error.reason}")
        weights: Update = self._weights()
        if sent.metadata.message_type == LOCATE:
            self.raw_up.append(entropy_bound(decode_masks(unpack_reply(reply).update, weights)))
        elif sent.metadata.message_type == TRAIN:
            blob = read_locations(sent)
            locations = decode_masks(blob, weights) if blob else None
            update = decode(unpack_reply(reply).update, weights, within=locations)
            where = {name: tensor != 0 for name, tensor in update.items()}
            bound = entropy_bound(where, within=locations)
            self.raw_up.append(bound + 4 * _count(where))
            if bound > 1000:
                # all values alike: what is left of the blob are the positions
                self.positions.append(len(encode(where, within=locations)) / bound)
            if locations is not None:
                self.raw_locations.append(entropy_bound(locations))
        return reply


def measure(model: str, method: str, data: str) -> dict[str, Any]:
    """Train for some rounds and return what a client's round cost."""
    small = SMALL_SOTERIA if method == "soteria" and model != "lenet" else {}
    settings = {"clients": CLIENTS, "batch_size": 32, "rounds": ROUNDS} | small
    overrides = f"{data} model={model} defense={method} lr=0.1 attack=none " + " ".join(
        f"{key}={value}" for key, value in settings.items()
    )
    parts = server_parts(overrides)
    strategy, rounds, clients = parts.strategy, settings["rounds"], settings["clients"]
    watch = _Watch(lambda: strategy.weights)
    changes: list[float] = []
    raw_down: list[float] = []
    previous: dict[str, Tensor] = {}

    def round_end(server_round: int, arrays: Any) -> None:
        nonlocal previous
        if previous:
            changed = {name: strategy.weights[name] != previous[name] for name in previous}
            changes.append(_count(changed) / sum(mask.numel() for mask in changed.values()))
            raw_down.append(entropy_bound(changed, within=strategy.within) + 4 * _count(changed))
        previous = dict(strategy.weights)

    start = time.perf_counter()
    strategy.start(
        grid=TappedGrid(InlineGrid(app, clients, run_config={"overrides": overrides}), watch),
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=rounds,
        evaluate_fn=round_end,
    )
    records = strategy.records[1:]
    dense = statistics.mean(record.dense_bytes for record in records) / clients
    up = statistics.mean(record.uplink_bytes for record in records) / clients
    down = statistics.mean(record.downlink_bytes for record in records) / clients
    raw = sum(watch.raw_up) / rounds / clients + statistics.mean(raw_down)
    raw += statistics.mean(watch.raw_locations) if watch.raw_locations else 0.0
    return {
        "model": model,
        "method": method,
        "clients": clients,
        "rounds": rounds,
        "up": up,
        "down": down,
        "dense": dense,
        "raw": raw,
        "union": statistics.mean(changes),
        "positions": statistics.mean(watch.positions) if watch.positions else None,
        "seconds": time.perf_counter() - start,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown, the paper's numbers beside ours."""
    lines = [
        "| model | method | MB up | MB down | of dense | with raw values | the paper's | union density "
        "| positions / bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    dense_of = {row["model"]: row["dense"] for row in rows if row["method"] == "none"}
    for model in MODELS:
        for method in METHODS:
            row = next((r for r in rows if (r["model"], r["method"]) == (model, method)), None)
            if row is None:
                continue
            dense = dense_of.get(model, row["dense"])
            paper = PAPER[model].get(method)
            cells = [
                model,
                method,
                f"{row['up'] / 1e6:.3f}",
                f"{row['down'] / 1e6:.3f}",
                f"{(row['up'] + row['down']) / dense:.3f}",
                f"{row['raw'] / dense:.3f}",
                f"{paper / PAPER[model]['none']:.3f}" if paper else "",
                f"{row['union']:.3f}",
                f"{row['positions']:.3f}" if row["positions"] else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.communication", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--data", type=Path, help="an image folder; else the embedded photographs")
    parser.add_argument("--out", type=Path, default=Path("runs/communication.jsonl"))
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    data = f"data=imagefolder data.root={quote(asked.data)}" if asked.data else "data=photos"
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(row["model"], row["method"]) for row in rows}
    for model in asked.models:
        for method in asked.methods:
            if (model, method) in done:
                continue
            row = measure(model, method, data)
            rows.append(row)
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{model} {method}: {(row['up'] + row['down']) / row['dense']:.3f} of dense", flush=True)
    print(table(rows))


def _count(masks: Update) -> int:
    return sum(int(mask.sum()) for mask in masks.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
