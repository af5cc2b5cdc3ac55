"""Faults into runs of the inline engine, each a forked child of this process."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

from benchmarks.chaos import faults
from benchmarks.chaos.damage import WAYS, contents, spoil
from benchmarks.chaos.invariants import (
    TRACEBACK,
    check_added,
    check_end,
    check_untouched,
    is_complete,
    is_of,
    load,
)
from benchmarks.chaos.processes import HANGS, attack, emptied, start
from benchmarks.chaos.session import ATTACKED, CONFIGS, Chaos, Outcome, overrides
from fl_app.running.ownership import CHECKPOINT, STATE

_ADDED = "bias_labels"


def exact_points(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike before one operation on a file, and often again in the run that goes on, up to four times."""
    _, most = chaos.base(config)
    return _chain(chaos, rng, config, seed, emptied(chaos.folder), rng.choice((1, 1, 2, 3, 4)), most)


def anew(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Start a run in the folder of a finished run of another config, and strike there."""
    _, most = chaos.base(config)
    other, _ = chaos.base(rng.choice([name for name in CONFIGS if name != config]))
    shutil.copytree(other, emptied(chaos.folder))
    # the files of the old run go first
    return _chain(chaos, rng, config, seed, chaos.folder, 1, rng.choice((20, most)), other)


def _chain(
    chaos: Chaos,
    rng: random.Random,
    config: str,
    seed: int,
    folder: Path,
    links: int,
    most: int,
    used_by: Path | None = None,
) -> Outcome:
    log, struck = chaos.home / f"{seed}.log", emptied(chaos.home / "struck")
    met, wrong = list[str](), list[str]()
    where = "" if used_by is None else "in a used folder, "
    code: int | str = 0
    names = [rng.choice(faults.EXACT) for _ in range(links)]
    for number, fault in enumerate(names):
        if number and is_complete(folder):
            break
        armed = faults.exact(folder, fault, rng.randint(1, most), struck)
        was, said = load(folder).get("status"), _length(log)
        child = start(overrides(config), folder, log, armed)
        code = child.wait()
        if not (isinstance(code, int) and code < 0):
            old = used_by is not None and is_of(used_by, folder)
            wrong += [] if old and code else check_end(folder, code, child.said()[said:], was=was)
        if used_by is not None and is_of(used_by, folder):
            wrong += check_untouched(folder, used_by)
        if struck.exists():
            struck.unlink()
            which = "" if number == 0 else "in a resume, "
            met.append(f"{which or where}at a file operation: {fault}")
    tried = f"{where}at a file operation: {names[0]}"
    return Outcome(tried, met, wrong + chaos.whole(folder, config, code, log), config)


def _length(log: Path) -> int:
    return len(log.read_text(errors="replace")) if log.exists() else 0


def clients(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike within the work of a client."""
    chaos.base(config)
    fault = rng.choice(faults.IN_CLIENTS)
    folder, log, struck = emptied(chaos.folder), chaos.home / f"{seed}.log", emptied(chaos.home / "struck")
    child = start(overrides(config), folder, log, faults.in_client(fault, rng.randint(1, 20), struck))
    code = child.wait()
    wrong = [] if isinstance(code, int) and code < 0 else check_end(folder, code, child.said())
    name = f"in a client: {fault}"
    met = [name] if struck.exists() else []
    if met and code == 0:
        wrong.append("exit 0 after it")
    return Outcome(name, met, wrong + chaos.whole(folder, config, code, log), config)


def moments(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike from outside at a random moment, up to three times."""
    chaos.base(config)
    folder, log = emptied(chaos.folder), chaos.home / f"{seed}.log"
    names = [rng.choice(faults.MOMENTS) for _ in range(rng.choice((1, 2, 3)))]
    met, wrong = list[str](), list[str]()
    code: int | str = 0
    for fault in names:
        was, said = load(folder).get("status"), _length(log)
        child = start(overrides(config), folder, log)
        if faults.at_a_moment(child, fault, rng, chaos.longest):
            met.append(f"at a moment: {fault}")
        code = child.wait()
        if code == HANGS:
            wrong.append("it hangs")
        # the kernel or the allocator may end a process that has no memory at all
        if isinstance(code, int) and code >= 0:
            wrong += check_end(folder, code, child.said()[said:], was=was)
        if is_complete(folder):
            break
    tried = f"at a moment: {names[0]}"
    return Outcome(tried, met, wrong + chaos.whole(folder, config, code, log), config)


def full_disks(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Fill a real disk at a random moment."""
    chaos.base(config)
    disk, name = faults.Disk(chaos.home / "disk"), "a full tmpfs"
    if not disk.is_there:
        return Outcome(name, [], [], config)
    log = chaos.home / f"{seed}.log"
    try:
        folder = disk.folder / "run"
        child = start(overrides(config), folder, log)
        until = time.monotonic() + rng.uniform(0, chaos.longest)
        while time.monotonic() < until and child.poll() is None:
            time.sleep(0.002)
        met = [name] if child.poll() is None else []
        disk.fill()
        code = child.wait()
        wrong = check_end(folder, code, child.said()) if folder.exists() else []
        disk.empty()
        return Outcome(name, met, wrong + chaos.whole(folder, config, code, log), config)
    finally:
        disk.close()


def damage(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Kill a run, damage one of its files, and resume it: it is refused, or comes to the same end."""
    base, most = chaos.base(config)
    folder, log = emptied(chaos.folder), chaos.home / f"{seed}.log"
    way, k = rng.choice(WAYS), rng.randint(most // 3, most)
    name = f"a file of a killed run: {way}"
    start(overrides(config), folder, log, faults.exact(folder, "KILL", k, chaos.home / "struck")).wait()
    if not (folder / CHECKPOINT / STATE).exists():
        return Outcome(name, [], [], config)
    (folder / ".lock").unlink(missing_ok=True)
    path = spoil(folder, base, way, rng)
    if path is None:
        return Outcome(name, [], [], config)
    before, said = contents(folder), len(log.read_text(errors="replace"))
    code = start(overrides(config), folder, log, resume=True).wait()
    told = log.read_text(errors="replace")[said:]
    what = f"{name} ({path.relative_to(folder)})"
    if code == 0:
        return Outcome(name, [name], [f"{what}: {w}" for w in chaos.whole(folder, config, 0, log)], config)
    wrong = [f"{what}: a traceback: {told.splitlines()[-1]}"] if TRACEBACK in told else []
    if code not in (1, 2):
        wrong.append(f"{what}: exit {code}")
    if contents(folder) != before:
        wrong.append(f"{what}: refused, and yet the folder has changed")
    # the only way out that is left: the run starts anew
    code = start(overrides(config), folder, log, resume=False).wait()
    return Outcome(
        name, [name], wrong + [f"{what}: {w}" for w in chaos.whole(folder, config, code, log)], config
    )


def attacks(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Strike while a new attack's results join those of a finished run."""
    base, _ = chaos.base(ATTACKED)
    whole = chaos.home / "attacked twice"
    if not whole.exists():
        shutil.copytree(base, whole)
        if code := attack(whole, _ADDED, chaos.home / "base.log").wait():
            raise RuntimeError(f"chaos: the undisturbed attack ended with {code}")
    folder = Path(shutil.copytree(base, emptied(chaos.folder)))
    log, struck = chaos.home / f"{seed}.log", emptied(chaos.home / "struck")
    fault = rng.choice(faults.EXACT)
    name = f"while an attack is added: {fault}"
    child = attack(folder, _ADDED, log, faults.exact(folder, fault, rng.randint(1, 12), struck))
    code = child.wait()
    wrong = ["a traceback"] if TRACEBACK in child.said() else []
    if struck.exists() and code == 0 and fault not in ("TERM",):
        wrong.append("exit 0 after it")
    old, now = load(base), load(folder)
    if now.get("status") != "finished" or now.get("attacks", [])[: len(old["attacks"])] != old["attacks"]:
        wrong.append(f"the result has changed: {now.get('status')}, {len(now.get('attacks', []))} attacks")
    if code := attack(folder, _ADDED, log).wait():
        wrong.append(f"exit {code} of the second attack")
    wrong += check_added(folder, whole)
    return Outcome(name, [name] if struck.exists() else [], wrong, ATTACKED)


def twice(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Start, or resume, one run by two processes at once: one of them is refused."""
    _, most = chaos.base(config)
    folder, log = emptied(chaos.folder), chaos.home / f"{seed}.log"
    other = chaos.home / f"{seed}.other.log"
    name = "two processes at one folder"
    if rng.random() < 0.5:
        armed = faults.exact(folder, "KILL", rng.randint(1, most), chaos.home / "struck")
        start(overrides(config), folder, log, armed).wait()
    children = [start(overrides(config), folder, where) for where in (log, other)]
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0, chaos.longest))
        children[0].send(signal.SIGKILL)
    codes = [child.wait() for child in children]
    told = log.read_text(errors="replace") + other.read_text(errors="replace")
    wrong = ["a traceback"] if TRACEBACK in told else []
    if any(code not in (0, 2, -signal.SIGKILL) for code in codes):
        wrong.append(f"exits {codes}")
    return Outcome(name, [name], wrong + chaos.whole(folder, config, 0, log), config)
