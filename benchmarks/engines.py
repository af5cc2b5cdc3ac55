"""Seconds per round: the inline engine against Flower's Ray runtime, same app, same config."""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
from pathlib import Path

from flwr.app import Context, RecordDict
from rich.console import Console
from rich.table import Table

from fl_app import client_app, server_app
from fl_app.engine import InlineGrid, run_on_ray
from fl_app.overrides import join_overrides, quote

CLIENTS = (10, 50)
HIDDEN = {"100k": 32, "1M": 325}
"""Hidden units of an MLP on 3x32x32 inputs that give about as many parameters."""
ROUNDS = {"inline": 12, "ray": 6}


def main() -> None:
    table = Table(title="seconds per round (median after the first), a batch of one, no defense")
    for column in ("clients", "parameters", "inline", "ray", "ray / inline"):
        table.add_column(column, justify="right")
    for clients in CLIENTS:
        for size, hidden in HIDDEN.items():
            inline, ray = (seconds(engine, clients, hidden) for engine in ("inline", "ray"))
            table.add_row(str(clients), size, f"{inline:.4f}", f"{ray:.4f}", f"{ray / inline:.1f}x")
    Console().print(table)


def seconds(engine: str, clients: int, hidden: int) -> float:
    """Run the app on the engine and return the median time of a round."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"engine={engine}",
            f"clients={clients}",
            f"rounds={ROUNDS[engine]}",
            f"evaluate_every={ROUNDS[engine]}",
            "model=mlp",
            f"model.hidden=[{hidden}]",
            "defense=none",
            "attack=none",
            "batch_size=1",
            f"run_dir={quote(folder)}",
        ]
        config = {"overrides": join_overrides(overrides)}
        logging.getLogger("flwr").setLevel(logging.ERROR)
        if engine == "ray":
            run_on_ray(server_app.app, client_app.app, clients, run_config=config)
        else:
            grid = InlineGrid(client_app.app, clients, run_config=config)
            server_app.app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
        result = json.loads((Path(folder) / "result.json").read_text())
    return statistics.median(row["seconds"] for row in result["rounds"][1:])


if __name__ == "__main__":
    main()
