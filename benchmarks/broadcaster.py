"""Damage of a malicious broadcaster to ADGP, with and without a vote on the locations.

``python -m benchmarks.broadcaster [--data FOLDER] [--rounds N] [--seeds N]``. A malicious
client names as many positions of every tensor as it should, so nothing shows
that they are not its largest. Two aims are measured: to stop the training
(the positions where its own gradient is smallest), and, with a server that
colludes, to see more of the others (whole rows and filters, which an attacker
can complete more easily than scattered entries).
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import quote
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation
from fl_app.types import Update
from fl_app.wire import decode_masks, encode
from fl_app.wire.messages import LOCATE, pack_reply, unpack_reply

CLIENTS = 10
VICTIMS = 6
Steer = Callable[[Tensor], Tensor]
"""From the honest mask of a tensor to another of the same count."""


class SteeringApp(ClientApp):
    """The real client app, except that malicious clients name other locations."""

    def __init__(self, malicious: set[int], steer: Steer, like: Update) -> None:
        super().__init__()
        self._malicious, self._steer, self._like = malicious, steer, like

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer as the real app does, and steer."""
        reply = app(message, context)
        steers = int(context.node_config["partition-id"]) in self._malicious
        if steers and message.metadata.message_type == LOCATE and not reply.has_error():
            answer = unpack_reply(reply)
            if not answer.answer.need_model:
                masks = {name: self._steer(m) for name, m in decode_masks(answer.update, self._like).items()}
                reply.content = pack_reply(replace(answer, update=encode(masks)))
        return reply


def smallest(honest: Tensor) -> Tensor:
    """Name what an honest client leaves out."""
    flat = honest.flatten()
    order = torch.argsort(flat.int(), stable=True)
    return _first_of(order, int(flat.sum())).view(honest.shape)


def whole_rows(honest: Tensor) -> Tensor:
    """Name the first rows or filters completely."""
    order = torch.arange(honest.numel(), device="cpu")
    return _first_of(order, int(honest.sum())).view(honest.shape)


def run(overrides: str, malicious: set[int], steer: Steer) -> dict[str, Any]:
    """Run a federation with malicious clients and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        text = f"{overrides} run_dir={quote(folder)}"
        weights = server_parts(text).model.named_parameters()
        like = {name: p.detach() for name, p in weights}
        grid = InlineGrid(
            SteeringApp(malicious, steer, like),
            CLIENTS,
            run_config={"overrides": text},
            node_config={"allow-audit": True},
        )
        run_federation(grid, text)
        content: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return content


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.broadcaster", description=__doc__)
    parser.add_argument("--data", type=Path, help="an image folder; else the embedded photographs")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    data = f"data=imagefolder data.root={quote(asked.data)} lr=0.1" if asked.data else "data=photos"
    common = f"{data} defense=adgp clients={CLIENTS}"
    print(
        "| malicious | location | accuracy % | outvoted and named, per round |\n|---|---|---|---|", flush=True
    )
    named = ("random", "vote defense.voters=3", "vote defense.voters=5")
    cases = [(m, location) for m in (0, 1, 3) for location in named]
    # as if the server always drew a malicious one: the most that can happen
    for malicious, location in [*cases, (CLIENTS, "random")]:
        row = _accuracy_row(f"{common} defense.location={location}", malicious, asked.rounds, asked.seeds)
        print(row, flush=True)
    print(
        "\n| locations | PSNR dB | adaptive PSNR dB | SSIM | adaptive SSIM |\n|---|---|---|---|---|",
        flush=True,
    )
    for title, steer in (("honest", lambda m: m), ("smallest", smallest), ("whole rows", whole_rows)):
        print(_leak_row(common, title, steer), flush=True)


def _accuracy_row(overrides: str, malicious: int, rounds: int, seeds: int) -> str:
    accuracies, named = [], []
    for seed in range(seeds):
        text = f"{overrides} rounds={rounds} seed={seed} evaluate_every=10 attack=none"
        result = run(text, set(range(malicious)), smallest)
        late = [row["accuracy"] for row in result["rounds"] if row["accuracy"] is not None][-5:]
        accuracies.append(100 * statistics.mean(late))
        named.append(sum(len(row["notes"]) for row in result["rounds"]) / rounds)
    location = overrides.split("location=")[1].replace("defense.", "")
    shown = f"{statistics.mean(accuracies):.1f}"
    if seeds > 1:
        shown += f" ± {statistics.stdev(accuracies):.1f}"
    return f"| {malicious} of {CLIENTS} | {location} | {shown} | {statistics.mean(named):.2f} |"


def _leak_row(overrides: str, title: str, steer: Steer) -> str:
    scores: dict[tuple[bool, str], float] = {}
    for adaptive in (False, True):
        victims = list(range(VICTIMS))
        text = (
            f"{overrides} rounds=1 attack=ig attack.clients={victims} attack.adaptive={adaptive} "
            "audit.contrast=false"
        ).replace(", ", ",")
        attacks = run(text, set(range(CLIENTS)), steer)["attacks"]
        for metric in ("psnr", "ssim"):
            scores[adaptive, metric] = statistics.mean(value for a in attacks for value in a[metric])
    cells = [f"{scores[adaptive, 'psnr']:.1f}" for adaptive in (False, True)]
    cells += [f"{scores[adaptive, 'ssim']:.2f}" for adaptive in (False, True)]
    return f"| {title} | {' | '.join(cells)} |"


def _first_of(order: Tensor, count: int) -> Tensor:
    mask = torch.zeros(order.numel(), dtype=torch.bool, device="cpu")
    mask[order[:count]] = True
    return mask


if __name__ == "__main__":
    main()
