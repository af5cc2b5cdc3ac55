"""Accuracy under liars: rules of aggregation against clients that flip, scale or poison their updates.

``python -m benchmarks.liars FOLDER`` trains all cells into the folder and prints the tables of docs/liars.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from fl_app.adversary.liars import TARGET, with_trigger
from fl_app.adversary.lies import LIES
from fl_app.config.build import server_parts
from fl_app.config.compose import quote, split_overrides
from fl_app.config.trust import WHOLE
from fl_app.data.dataset import normalise, pixels
from fl_app.experiments.job import run_job
from fl_app.strategies.robust import RULES

SETTING = (
    "data=fashion_mnist model=mlp clients=10 rounds=100 lr=0.1 batch_size=32 defense=none attack=none "
    "baseline=false evaluate_every=100 checkpoint=false threads=1 seed=0"
)
SHARES = (0.0, 0.1, 0.2, 0.4)


def train(folder: Path, rule: str, lie: str, share: float) -> tuple[float, float]:
    """Return the accuracy, and how many marked images of other classes are called the backdoor's."""
    where = folder / f"{rule}-{lie}-{share:g}"
    cell = f"aggregate={rule} withstand={min(max(share, 0.1), 0.4)} liars={share} lie={lie}"
    if not (where / "model.safetensors").exists():
        run_job([*split_overrides(SETTING), *split_overrides(cell), f"run_dir={quote(where)}"])
    result = json.loads((where / "result.json").read_text())
    return result["summary"]["accuracy"], fooled(where)


def fooled(folder: Path) -> float:
    """Return the share of marked test images that the model calls `TARGET` and that are not."""
    parts = server_parts(SETTING, WHOLE)
    parts.model.load_state_dict(load_file(folder / "model.safetensors"))
    samples = parts.dataset.test
    others = samples.labels != TARGET
    marked = with_trigger(pixels(samples.inputs[others], "cpu"))
    with torch.no_grad():
        said = parts.model(normalise(marked, parts.dataset.mean, parts.dataset.std)).argmax(1)
    return float((said == TARGET).float().mean())


def main() -> None:
    """Train all cells and print a table for each lie."""
    parser = argparse.ArgumentParser(prog="benchmarks.liars", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for lie in LIES:
        print(f"\n### {lie}\n")
        print("| rule |", *(f"{share:.0%} liars |" for share in SHARES))
        print("|---|" + "---|" * len(SHARES))
        for rule in RULES:
            cells = []
            for share in SHARES:
                accuracy, called = train(folder, rule, lie if share else LIES[0], share)
                cells.append(f"{accuracy:.1%}" + (f" ({called:.0%})" if lie == "backdoor" else ""))
            print(f"| {rule} |", *(f"{cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
