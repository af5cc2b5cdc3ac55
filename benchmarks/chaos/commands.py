"""Faults into commands that run as processes of their own."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.chaos.invariants import TRACEBACK, check_end, load
from benchmarks.chaos.session import SMALL, Chaos, Outcome, overrides
from fl_app.running.ownership import CHECKPOINT


def clocks(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Let the clock jump by years while a run is at work (libfaketime)."""
    name = "a clock that jumps"
    libraries = list(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        return Outcome(name, [], [], config)
    folder, log = chaos.home / f"clock {seed}", chaos.home / f"{seed}.log"
    stamp = chaos.home / f"{seed}.clock"
    stamp.write_text("+0")
    environment = os.environ | {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(stamp),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    chaos.base(config)
    met = list[str]()
    with log.open("w") as out:
        command = [sys.executable, "-m", "fl_app", *overrides(config), f"hydra.run.dir='{folder}'"]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=chaos.home)
        while process.poll() is None:
            stamp.write_text(f"{rng.choice('+-')}{rng.randrange(1, 9000)}d")
            met = [name] if (folder / "result.json").exists() else []
            time.sleep(rng.uniform(0.3, 0.8))
    wrong = check_end(folder, process.returncode, log.read_text(errors="replace"))
    rows = load(folder).get("rounds", [])
    if [row["round"] for row in rows] != list(range(1, 6)):
        wrong.append(f"rounds {[row['round'] for row in rows]}")
    return Outcome(name, met, wrong, config)


def sweeps(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Kill a sweep with two workers, or one of them, and let the same command go on."""
    folder, log = chaos.home / f"sweep {seed}", chaos.home / f"{seed}.log"
    cells = "defense=none,dgp seed=0,1"
    words = shlex.split(f"{SMALL} attack=none dp=none {cells} jobs=2")
    command = [sys.executable, "-m", "fl_app", "-m", *words, f"hydra.sweep.dir='{folder}'"]
    target = rng.choice(("worker", "parent", "worker and parent"))
    met, name = list[str](), f"a sweep's {target} killed"
    with log.open("w") as out:
        for _ in range(rng.choice((1, 2))):
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=chaos.home)
            while process.poll() is None and not list(folder.glob("*/result.json")):
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 1.5))
            met += [name] if process.poll() is None else []
            workers = _workers_of(process.pid)
            _kill(workers[:1] if "worker" in target else [])
            _kill([process.pid] if "parent" in target else [])
            process.wait()
        again = subprocess.run(command, stdout=out, stderr=out, cwd=chaos.home, timeout=900)
    wrong = [] if again.returncode == 0 else [f"exit {again.returncode} of the last sweep"]
    if TRACEBACK in log.read_text(errors="replace"):
        wrong.append("a traceback")
    finished = sorted(path.parent for path in folder.glob("*/result.json"))
    if len(finished) != 4 or any(load(cell).get("status") != "finished" for cell in finished):
        wrong.append(f"cells {[(cell.name, load(cell).get('status')) for cell in finished]}")
    left = [p.name for p in folder.rglob("*") if p.suffix in (".lock", ".part") or p.name == CHECKPOINT]
    if left:
        wrong.append(f"left over {left}")
    whole = chaos.home / "whole sweep"
    if not whole.exists():
        subprocess.run([*command[:-1], f"hydra.sweep.dir='{whole}'"], capture_output=True, cwd=chaos.home)
    for cell in finished:
        if not _same_model(cell, whole / cell.name):
            wrong.append(f"another model in {cell.name}")
    return Outcome(name, met, wrong)


def _same_model(one: Path, other: Path) -> bool:
    models = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    return models[0] == models[1]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _workers_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "spawn_main"], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]
