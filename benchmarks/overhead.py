"""The price of being a real Flower app: a round on the inline engine against a bare PyTorch loop.

The loop computes the same gradients and the same transforms and takes the same
step, but sends no message. What the app spends beyond it is printed by part.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.app import Context, RecordDict
from rich.console import Console
from rich.table import Table

from fl_app import client_app, server_app
from fl_app.adversary import passive as audit
from fl_app.client import answers, client
from fl_app.client import state as client_state
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import join_overrides, quote
from fl_app.flower import InlineGrid, inline
from fl_app.seeding import generator_for
from fl_app.strategies import downlink, exchange, fed_sgd
from fl_app.strategies.aggregate import RunningSum
from fl_app.training import Job, batch_norm, parameters
from fl_app.types import RoundContext

CLIENTS = 10
REPEATS = 2
CASES = {"lenet": 60, "resnet18": 2}
"""Model and measured rounds."""

PARTS: dict[str, list[tuple[Any, str]]] = {
    "state": [(client_state, "load"), (client_state, "save")],
    "encode": [(client, "encode"), (downlink, "encode"), (downlink, "encode_change"), (fed_sgd, "encode")],
    "decode": [(client, "decode"), (client, "apply_change"), (fed_sgd, "decode"), (audit, "decode")],
    "message": [
        (answers, "unpack_order"),
        (answers, "pack_reply"),
        (fed_sgd, "pack_order"),
        (exchange, "unpack_reply"),
        (exchange, "content_bytes"),
        (inline, "copy_message"),
        (inline, "copy_records"),
    ],
}


def main() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    table = Table(title=f"seconds per round, {CLIENTS} clients, batch 32, DGP with error feedback")
    for column in ("model", "bare loop", "inline", "inline / bare", *PARTS):
        table.add_column(column, justify="right")
    for model, rounds in CASES.items():
        spent: dict[str, float] = defaultdict(float)
        overrides = [f"model={model}", "attack=none", f"clients={CLIENTS}", "bn=frozen"]
        # in turns, and the better of each: what else the machine does hits both alike
        pairs = [
            (loop_seconds(overrides, rounds + 1), app_seconds(overrides, rounds + 1, spent))
            for _ in range(REPEATS)
        ]
        bare, inline_app = (min(times) for times in zip(*pairs, strict=True))
        shares = (f"{spent[part] / REPEATS / (rounds + 1):.4f}" for part in PARTS)
        table.add_row(model, f"{bare:.4f}", f"{inline_app:.4f}", f"{inline_app / bare:.2f}x", *shares)
    Console().print(table)


def app_seconds(overrides: list[str], rounds: int, spent: dict[str, float]) -> float:
    """Return the median time of a round of the real app; ``spent`` gets the seconds of each part."""
    with tempfile.TemporaryDirectory() as folder, _clocks(spent):
        every = [f"rounds={rounds}", f"evaluate_every={rounds}", f"run_dir={quote(folder)}"]
        config = {"overrides": join_overrides(overrides + every)}
        grid = InlineGrid(client_app.app, CLIENTS, run_config=config)
        server_app.app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
        result = json.loads((Path(folder) / "result.json").read_text())
    return statistics.median(row["seconds"] for row in result["rounds"][1:])


def loop_seconds(overrides: list[str], rounds: int) -> float:
    """Return the median time of a round of plain PyTorch."""
    text = join_overrides(overrides)
    parts, server = client_parts(text), server_parts(text)
    model = server.model
    batch_norm.set_mode(model, training=True, bn="frozen")
    weights = parameters(model)
    states: dict[int, Any] = {}
    times = []
    for round in range(1, rounds + 1):
        start = time.perf_counter()
        total = RunningSum()
        for number in range(CLIENTS):
            trained = parts.trainer(
                model,
                parts.data_of(number, CLIENTS),
                Job(round, 0.1, generator_for(0, round, number, "rules")),
            )
            context = RoundContext(round, number, generator_for(0, round, number, "transform"))
            state = states.get(number) or parts.defense.transform.init(trained.update)
            sent, states[number] = parts.defense.transform.apply(trained.update, state, context)
            total.add(sent, float(trained.samples))
        mean = total.over(total.weight)
        for name, parameter in weights.items():
            parameter.data.sub_(mean[name], alpha=0.1)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


@contextmanager
def _clocks(spent: dict[str, float]) -> Iterator[None]:
    """Time every call of the functions in PARTS."""

    def timed(function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - start

        return call

    with ExitStack() as stack:
        for part, functions in PARTS.items():
            for owner, name in functions:
                stack.enter_context(patch.object(owner, name, timed(getattr(owner, name), part)))
        yield


if __name__ == "__main__":
    main()
