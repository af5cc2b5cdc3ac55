"""``python -m benchmarks.chaos --minutes 10 [--seed S] [--kinds …]``: inject faults and count the losses.

Every fault has a seed of its own, which is printed with a loss. ``--seed S --faults 1`` with the same
``--kinds`` injects that one again. The exit code is 1 if any run lost something.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos import faults
from benchmarks.chaos.invariants import check_end, check_whole, is_complete, load
from benchmarks.chaos.processes import HANGS, emptied, start, warm
from fl_app.console.logs import show_logs
from fl_app.running.ownership import CHECKPOINT, STATE

_SMALL = (
    "data.train_per_class=6 data.test_per_class=3 clients=4 batch_size=4 rounds=5 lr=0.1 threads=1 model=mlp "
    "model.hidden=[8] data.size=12 evaluate_every=2 baseline=false checkpoint=true"
)
_NOISE = "training.steps=2 defense=fl_top defense.share=0.1 dp=client dp.epsilon=null dp.noise_multiplier=1"
CONFIGS = {
    "dgp": "attack=none defense=dgp dp=none",
    "adgp": "attack=none defense=adgp dp=none",
    "attacked": "defense=dgp attack=idlg_label attack.rounds=[1,3] attack.clients=[0,2] dp=none",
    "dp": f"attack=none {_NOISE}",
    "dp and secagg": f"attack=none {_NOISE} secagg=on secagg.min_clients=3",
}
_MASKED = "dp and secagg"
_TRIES = 4
_FAULTS = "tests/deployment/test_faults.py"


@dataclass
class Chaos:
    """One session: its folder, the undisturbed runs, and the counts."""

    home: Path
    longest: float = 3.0
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    bases: dict[str, tuple[Path, int]] = field(default_factory=dict)

    def base(self, config: str) -> tuple[Path, int]:
        """Return the undisturbed run of a config, and the number of its operations on files."""
        if config not in self.bases:
            folder, counted = self.home / "run", self.home / "operations"
            warm(overrides(config), emptied(folder))
            began = time.monotonic()
            child = start(
                overrides(config), emptied(folder), self.home / "base.log", faults.count(folder, counted)
            )
            if code := child.wait():
                raise RuntimeError(f"chaos: the undisturbed run ended with {code}:\n{child.said()[-2000:]}")
            self.longest = time.monotonic() - began
            self.bases[config] = folder.rename(self.home / f"base {config}"), int(counted.read_text())
        return self.bases[config]

    def strike(self, seed: int, kinds: list[str]) -> None:
        """Inject the fault of a seed, resume until the run is whole, and compare."""
        rng = random.Random(seed)
        kind, config = rng.choice(kinds), rng.choice(list(CONFIGS))
        name, wrong, met = KINDS[kind](self, rng, config, seed)
        if not met:
            self.missed[name] += 1
        self.done[name] += met
        for what in wrong:
            self.wrong.append(f"seed {seed}: {name}, {config}: {what}")
            print(self.wrong[-1], flush=True)

    def whole(self, folder: Path, config: str, code: int | str, log: Path) -> list[str]:
        """Resume a run, or start it anew, until it is complete; return what it lacks then."""
        base, _ = self.base(config)
        before = len(log.read_text(errors="replace")) if log.exists() else 0
        for _ in range(_TRIES):
            if is_complete(folder):
                code = 0
                break
            code = start(overrides(config), folder, log).wait()
        said = log.read_text(errors="replace")[before:]
        return check_whole(folder, base, code, said, repeats=config != _MASKED)


def overrides(config: str) -> list[str]:
    """Return the overrides of a config."""
    return shlex.split(f"{_SMALL} {CONFIGS[config]}")


Outcome = tuple[str, list[str], int]
"""The name of the fault, what is wrong, and how many faults were met."""


def exact_points(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike before one operation on a file, sometimes once more in the resumed run."""
    _, most = chaos.base(config)
    fault = rng.choice(faults.EXACT)
    folder, log = emptied(chaos.home / "run"), chaos.home / f"{seed}.log"
    armed = faults.exact(folder, fault, rng.randint(1, most))
    child = start(overrides(config), folder, log, armed)
    code = child.wait()
    wrong = [] if isinstance(code, int) and code < 0 else check_end(folder, code, child.said())
    met = 1
    if (folder / CHECKPOINT / STATE).exists() and rng.random() < 0.3:
        again = faults.exact(folder, rng.choice(faults.EXACT), rng.randint(1, most))
        code = start(overrides(config), folder, log, again).wait()
        met = 2
    return f"at a file operation: {fault}", wrong + chaos.whole(folder, config, code, log), met


def clients(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike within the work of a client."""
    chaos.base(config)
    fault = rng.choice(faults.IN_CLIENTS)
    folder, log = emptied(chaos.home / "run"), chaos.home / f"{seed}.log"
    child = start(overrides(config), folder, log, faults.in_client(fault, rng.randint(1, 16)))
    code = child.wait()
    wrong = [] if isinstance(code, int) and code < 0 else check_end(folder, code, child.said())
    return f"in a client: {fault}", wrong + chaos.whole(folder, config, code, log), int(code != 0)


def moments(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike from outside at a random moment, up to twice."""
    chaos.base(config)
    fault = rng.choice(faults.MOMENTS)
    folder, log = emptied(chaos.home / "run"), chaos.home / f"{seed}.log"
    met, wrong = 0, list[str]()
    code: int | str = 0
    for _ in range(rng.choice((1, 1, 2))):
        child = start(overrides(config), folder, log)
        met += faults.at_a_moment(child, fault, rng, chaos.longest)
        code = child.wait()
        if code == HANGS:
            wrong.append("it hangs")
        if is_complete(folder):
            break
    if fault == "less memory" and code not in (0, -signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV):
        wrong += check_end(folder, code, log.read_text(errors="replace"))
    return f"at a moment: {fault}", wrong + chaos.whole(folder, config, code, log), met


def full_disks(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Fill a real disk at a random moment."""
    chaos.base(config)
    disk = faults.Disk(chaos.home / "disk")
    if not disk.is_there:
        return "a full tmpfs", [], 0
    log = chaos.home / f"{seed}.log"
    try:
        folder = disk.folder / "run"
        child = start(overrides(config), folder, log)
        until = time.monotonic() + rng.uniform(0, chaos.longest)
        while time.monotonic() < until and child.poll() is None:
            time.sleep(0.002)
        running = child.poll() is None
        disk.fill()
        code = child.wait()
        wrong = check_end(folder, code, child.said()) if folder.exists() else []
        disk.empty()
        return "a full tmpfs", wrong + chaos.whole(folder, config, code, log), int(running)
    finally:
        disk.close()


def clocks(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Let the clock jump by years while a run is at work (libfaketime)."""
    libraries = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        return "a clock that jumps", [], 0
    folder, log = emptied(chaos.home / "run"), chaos.home / f"{seed}.log"
    stamp = chaos.home / f"{seed}.clock"
    stamp.write_text("+0")
    environment = os.environ | {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    chaos.base(config)
    with log.open("w") as out:
        command = [sys.executable, "-m", "fl_app", *overrides(config), f"hydra.run.dir='{folder}'"]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=chaos.home)
        while process.poll() is None:
            stamp.write_text(f"{rng.choice('+-')}{rng.randrange(1, 9000)}d")
            time.sleep(rng.uniform(0.05, 0.5))
    wrong = check_end(folder, process.returncode, log.read_text(errors="replace"))
    rows = load(folder).get("rounds", [])
    if [row["round"] for row in rows] != list(range(1, 6)):
        wrong.append(f"rounds {[row['round'] for row in rows]}")
    return "a clock that jumps", wrong, 1


def sweeps(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Kill a sweep with two workers, or one of them, and let the same command go on."""
    folder, log = chaos.home / f"sweep {seed}", chaos.home / f"{seed}.log"
    cells = "defense=none,dgp seed=0,1"
    words = shlex.split(f"{_SMALL} attack=none dp=none {cells} jobs=2")
    command = [sys.executable, "-m", "fl_app", "-m", *words, f"hydra.sweep.dir='{folder}'"]
    target = rng.choice(("worker", "parent"))
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=chaos.home)
        while process.poll() is None and not list(folder.glob("*/result.json")):
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 1.5))
        met = int(process.poll() is None)
        workers = _workers_of(process.pid)
        for pid in workers[:1] if target == "worker" else [process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        again = subprocess.run(command, stdout=out, stderr=out, cwd=chaos.home, timeout=600)
    wrong = [] if again.returncode == 0 else [f"exit {again.returncode} of the second sweep"]
    if "Traceback" in (text := log.read_text(errors="replace")) and "KeyboardInterrupt" not in text:
        wrong.append("a traceback")
    finished = sorted(path.parent for path in folder.glob("*/result.json"))
    if len(finished) != 4 or any(load(cell).get("status") != "finished" for cell in finished):
        wrong.append(f"cells {[(cell.name, load(cell).get('status')) for cell in finished]}")
    left = [p.name for p in folder.rglob("*") if p.suffix in (".lock", ".part") or p.name == CHECKPOINT]
    if left:
        wrong.append(f"left over {left}")
    return f"a sweep's {target} killed", wrong, met


def _workers_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "spawn_main"], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def deployed(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Run one fault-injection test of the deployment as processes; it compares models bit for bit."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", "slow or not slow", _FAULTS],
        capture_output=True,
        text=True,
    )
    tests = [line for line in listed.stdout.splitlines() if "::" in line]
    if not tests:
        return "a deployment", ["no tests of a deployment were found"], 0
    test = rng.choice(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "slow or not slow", test], capture_output=True, text=True
    )
    wrong = [] if done.returncode == 0 else [done.stdout[-1500:]]
    return f"a deployment: {test.rpartition('::')[2]}", wrong, 1


KINDS: dict[str, Callable[[Chaos, random.Random, str, int], Outcome]] = {
    "exact": exact_points,
    "clients": clients,
    "moments": moments,
    "disks": full_disks,
    "clocks": clocks,
    "sweeps": sweeps,
    "deployed": deployed,
}
_DEFAULT = ("exact", "exact", "exact", "clients", "moments", "disks")


def main(arguments: list[str] | None = None) -> int:
    """Inject faults until the time is over; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--faults", type=int, default=10**9, help="stop after so many seeds")
    parser.add_argument("--seed", type=int, default=None, help="the first seed; default: from the clock")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(_DEFAULT))
    args = parser.parse_args(arguments)
    first = int(time.time()) % 10**8 if args.seed is None else args.seed
    end = time.monotonic() + 60 * args.minutes
    show_logs(False)
    with tempfile.TemporaryDirectory(prefix="chaos-") as home:
        chaos = Chaos(Path(home))
        seed = first
        while time.monotonic() < end and seed < first + args.faults:
            chaos.strike(seed, args.kinds)
            seed += 1
    print(f"seeds {first} to {seed - 1}, kinds {' '.join(args.kinds)}\n")
    print("| fault | injected | came too late | violations |\n|---|---|---|---|")
    for name in sorted(chaos.done.keys() | chaos.missed.keys()):
        bad = sum(f": {name}, " in what for what in chaos.wrong)
        print(f"| {name} | {chaos.done[name]} | {chaos.missed[name]} | {bad} |")
    print(f"| all | {sum(chaos.done.values())} | {sum(chaos.missed.values())} | {len(chaos.wrong)} |")
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
