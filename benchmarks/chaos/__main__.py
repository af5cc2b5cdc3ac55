"""``python -m benchmarks.chaos --minutes 10 [--seed S] [--kinds …]``: inject faults and count the losses.

Every fault has a seed of its own, which is printed with a loss. ``--seed S --faults 1`` with the same
``--kinds`` injects that one again. The exit code is 1 if any run lost something.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.chaos import commands, deployments, inline
from benchmarks.chaos.session import CONFIGS, Chaos, Outcome
from fl_app.console.logs import show_logs

KINDS: dict[str, Callable[[Chaos, random.Random, str, int], Outcome]] = {
    "exact": inline.exact_points,
    "anew": inline.anew,
    "clients": inline.clients,
    "moments": inline.moments,
    "disks": inline.full_disks,
    "damage": inline.damage,
    "attacks": inline.attacks,
    "twice": inline.twice,
    "clocks": commands.clocks,
    "sweeps": commands.sweeps,
    "deployed": deployments.deployed,
    "links": deployments.links,
}
_SHARES = {"exact": 40, "clients": 12, "moments": 12, "disks": 6, "damage": 16, "anew": 6, "attacks": 8}
_SHARES |= {"twice": 4, "clocks": 1, "sweeps": 1, "deployed": 1}
"""Faults of each kind among 100 or so; ``links`` takes minutes, and is asked for by name."""


def strike(chaos: Chaos, seed: int, kinds: Sequence[str], configs: Sequence[str]) -> None:
    """Inject the fault of a seed, resume until the run is whole, and compare."""
    rng = random.Random(seed)
    (kind,) = rng.choices(kinds, [_SHARES.get(each, 1) for each in kinds])
    try:
        outcome = KINDS[kind](chaos, rng, rng.choice(configs), seed)
    except Exception as error:  # the other seeds go on
        outcome = Outcome(kind, [], [f"{type(error).__name__}: {error}"])
    chaos.note(seed, outcome)


def main(arguments: list[str] | None = None) -> int:
    """Inject faults until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=10**9, help="stop after so many seeds")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; default: from the clock")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(_SHARES))
    parser.add_argument("--configs", nargs="+", choices=sorted(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--add-to", type=Path, default=None, help="a JSON file of counts to add these to")
    args = parser.parse_args(arguments)
    first = int(time.time()) % 10**8 if args.seed is None else args.seed
    end = time.monotonic() + 60 * args.minutes
    show_logs(False)
    seed = first
    with tempfile.TemporaryDirectory(prefix="chaos-") as home, deployments.closing():
        chaos = Chaos(Path(home))
        while time.monotonic() < end and seed < first + args.faults:
            strike(chaos, seed, args.kinds, args.configs)
            seed += 1
    print(f"seeds {first} to {seed - 1}, kinds {' '.join(args.kinds)}\n")
    counts = {
        name: [chaos.done[name], chaos.missed[name], sum(tried == name for tried, _ in chaos.wrong)]
        for name in sorted(chaos.done.keys() | chaos.missed.keys() | {tried for tried, _ in chaos.wrong})
    }
    if args.add_to is not None:
        counts = _added(args.add_to, counts)
    print("| fault | met a run | came too late | violations |\n|---|---|---|---|")
    for name, (met, missed, bad) in counts.items():
        print(f"| {name} | {met} | {missed} | {bad} |")
    print(f"| all | {' | '.join(str(sum(row[i] for row in counts.values())) for i in range(3))} |")
    return 1 if chaos.wrong else 0


def _added(path: Path, counts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Add counts to those in a file, and return the sums."""
    before: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
    none = [0, 0, 0]
    sums = {
        name: [one + other for one, other in zip(before.get(name, none), counts.get(name, none), strict=True)]
        for name in sorted(before.keys() | counts.keys())
    }
    path.write_text(json.dumps(sums, indent=1) + "\n")
    return sums


if __name__ == "__main__":
    sys.exit(main())
