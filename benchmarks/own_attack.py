"""Gate of a node that attacks its own updates: what it withholds, and the CPU time that it adds to a round.

python -m benchmarks.own_attack [seconds]    seconds that the gate may spend on an update; 2 by default
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import fl_app
from fl_app.privacy.member_bound import exact_interval
from fl_app.results import load_run

CASES = {
    "one image, no defense": "defense=none batch_size=1",
    "8 images, no defense": "defense=none batch_size=8",
    "one image, DGP": "defense=dgp batch_size=1",
    "one image, noise that hides it (false alarms)": "defense=gaussian defense.std=10 batch_size=1",
}
COMMON = (
    "attack=none threads=1 clients=4 rounds=1 model=mlp data.train_per_class=20 data.test_per_class=2 "
    "checkpoint=false"
)
SEEDS = range(2)
POLICY = "min_batch = 1\nmin_samples = 1\n"


def round_of(overrides: str, seed: int, folder: Path) -> tuple[int, int, float]:
    """Return how many updates were withheld, how many there were, and the CPU seconds of one round."""
    begun = time.process_time()
    try:
        fl_app.run(*f"{COMMON} {overrides} seed={seed} run_dir={folder}".split())
    except Exception as error:  # a round of which nothing is left ends the run
        if "leak" not in str(error):
            raise
        return 4, 4, time.process_time() - begun
    spent = time.process_time() - begun
    failures = [failure for row in load_run(folder).rounds for failure in row.failures]
    return sum("leak" in failure.reason for failure in failures), 4, spent


def main(seconds: float = 2.0) -> None:
    """Print a row for each case."""
    print(
        "| update | withheld (95 %) | CPU seconds of a round of four | without the gate |\n|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as work:
        gated, open_ = Path(work) / "gated.toml", Path(work) / "open.toml"
        open_.write_text(POLICY)
        gated.write_text(f"{POLICY}[own_attack]\nseconds = {seconds:g}\n")
        round_of(next(iter(CASES.values())), 0, Path(work) / "imports")  # loads what all others use
        for number, (name, overrides) in enumerate(CASES.items()):
            spent: dict[Path, float] = {}
            withheld = asked = 0
            for policy in (open_, gated):
                os.environ["FL_APP_POLICY"] = str(policy)
                rounds = [round_of(overrides, s, Path(work) / f"{number}-{policy.stem}-{s}") for s in SEEDS]
                spent[policy] = sum(cost for _, _, cost in rounds) / len(rounds)
                withheld, asked = sum(w for w, _, _ in rounds), sum(n for _, n, _ in rounds)
            low, high = exact_interval(withheld, asked)
            print(
                f"| {name} | {withheld} of {asked} ({low:.0%}–{high:.0%}) | {spent[gated]:.1f} | "
                f"{spent[open_]:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]))
