"""Calls and files of ours that one update passes, from order to step: `python -m benchmarks.update_path`.

A round of LeNet is run with four clients and with three; the difference is one update. The codec is left
out (`fl_app/wire` but for its messages), and so is the training step itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import fl_app
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid, TappedGrid
from fl_app.flower.held_tensor import hold
from fl_app.running.federation import watch

ROUND = 3
PACKAGE = Path(fl_app.__file__).parent
APART = ("wire", "training", "transforms")


def calls(clients: int) -> Counter[tuple[str, str]]:
    """Return the calls of our functions in one round, by file and name."""
    text = (
        f"clients={clients} rounds={ROUND} model=lenet data.train_per_class=8 data.test_per_class=4 "
        "batch_size=4 threads=1 attack=ig attack.rounds=[1] attack.clients=[0]"
    )
    parts = server_parts(text, WHOLE)
    counted: Counter[tuple[str, str]] = Counter()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            name = str(file.relative_to(PACKAGE))
            if name.split("/")[0] not in APART or name == "wire/messages.py":
                counted[name, frame.f_code.co_name] += 1

    def round_ended(server_round: int, arrays: Any) -> None:
        sys.setprofile(count if server_round == ROUND - 1 else None)

    parts.strategy.start(
        grid=TappedGrid(InlineGrid(app, clients, run_config={"overrides": text}), watch(parts)),
        initial_arrays=hold(parts.model.state_dict()),
        num_rounds=ROUND,
        evaluate_fn=round_ended,
    )
    return counted


def main() -> None:
    """Print the calls by file, and both sums."""
    calls(4)  # imports, and models that are built once
    several, fewer = calls(4), calls(3)
    one = Counter({key: several[key] - fewer[key] for key in several if several[key] > fewer[key]})
    files: Counter[str] = Counter()
    for (file, _), times in one.items():
        files[file] += times
    for file, times in files.most_common():
        print(f"{times:5d}  {file}")
    print(f"{sum(files.values()):5d}  calls in {len(files)} files")


if __name__ == "__main__":
    main()
