"""Comparison of a disturbed run with the undisturbed one; every difference that is a loss is a sentence."""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

TRACEBACK = "Traceback (most recent call last)"


def load(folder: Path) -> dict[str, Any]:
    """Return the result in a folder; nothing if there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def is_complete(folder: Path) -> bool:
    """Say whether a run is finished and has nothing left to do."""
    done = load(folder).get("status") == "finished" and (folder / "report.html").exists()
    return done and not (folder / "checkpoint").exists()


def check_end(folder: Path, code: int | str, said: str, *, was: str | None = None) -> list[str]:
    """Return what is wrong with the end of a run that met a fault and was not killed.

    ``was``: its status before, which a refused resume leaves.
    """
    status = load(folder).get("status")
    wrong = []
    if TRACEBACK in said:
        wrong.append(f"a traceback: {said[said.index(TRACEBACK) :][-1500:]}")
    if code not in (0, 1, 2, 130):
        wrong.append(f"exit {code}")
    if code == 0 and not is_complete(folder):
        wrong.append(f"exit 0, status {status}")
    if code in (1, 2) and status == "running" and was != "running":
        wrong.append(f"exit {code}, and the status is still running")
    return wrong


def check_whole(folder: Path, base: Path, code: int | str, said: str, *, repeats: bool) -> list[str]:
    """Return what a run that was disturbed and has ended lacks beside the undisturbed one.

    ``repeats``: whether its bits must be the same; else its privacy must be charged at least as much.
    """
    here, there = load(folder), load(base)
    wrong = [] if code == 0 else [f"exit {code} at last: {said.strip().splitlines()[-1:]}"]
    if TRACEBACK in said:
        wrong.append(f"a traceback: {said[said.index(TRACEBACK) :][-1500:]}")
    if here.get("status") != "finished":
        return [*wrong, f"status {here.get('status')}: {here.get('error')}"]
    rows, wanted = here["rounds"], there["rounds"]
    if [row["round"] for row in rows] != [row["round"] for row in wanted]:
        wrong.append(f"rounds {[row['round'] for row in rows]}")
    for key in ("epsilon", "epsilon_server"):
        told = [row.get(key) or 0.0 for row in rows]
        least = [row.get(key) or 0.0 for row in wanted]
        if any(one < other - 1e-12 for one, other in zip(told, least, strict=False)) or sorted(told) != told:
            wrong.append(f"{key} {told} below {least}")
    if repeats:
        if (folder / "model.safetensors").read_bytes() != (base / "model.safetensors").read_bytes():
            wrong.append("another model")
        # the norms of residuals are among the rows: what was withheld is still owed
        for key in ("rounds", "attacks", "notes", "privacy", "config_hash"):
            if _timeless(here.get(key)) != _timeless(there.get(key)):
                wrong.append(f"other {key}")
    return wrong + _other_files(folder, base)


def _other_files(folder: Path, base: Path) -> list[str]:
    """Return the files that only one of two folders has, but for a lock that its owner's death has opened."""
    names = [{str(p.relative_to(where)) for p in where.rglob("*")} for where in (folder, base)]
    if (lock := folder / ".lock").exists():
        with lock.open() as stream, suppress(BlockingIOError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            names[0].discard(".lock")
    if names[0] == names[1]:
        return []
    return [f"left over {sorted(names[0] - names[1])}, missing {sorted(names[1] - names[0])}"]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if "seconds" not in key}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def check_added(folder: Path, whole: Path) -> list[str]:
    """Return what a run with an attack that was added after a fault lacks beside the undisturbed one."""
    here, there = _timeless(load(folder)), _timeless(load(whole))
    wrong = [f"other {key}" for key in there if here.get(key) != there[key] and key != "summary"]
    return wrong + _other_files(folder, whole)


def is_of(run: Path, folder: Path) -> bool:
    """Say whether the result in ``folder`` is that of the finished ``run``."""
    here, there = load(folder), load(run)
    return here.get("status") == "finished" and here.get("config_hash") == there["config_hash"]


def check_untouched(folder: Path, run: Path) -> list[str]:
    """Return what a finished run has lost to a new one that has not begun."""
    return [
        f"the result is the old one, and {path.relative_to(run)} is not"
        for path in run.rglob("*")
        if path.is_file()
        and (not (same := folder / path.relative_to(run)).is_file() or same.read_bytes() != path.read_bytes())
    ]
