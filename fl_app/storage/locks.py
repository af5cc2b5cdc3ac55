"""Lock file that names its owner; a lock left by a dead process does not count.

Whether a process of another host is alive cannot be told from here: its lock holds
until it, or a person, removes the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_GUARD = ".guard"
_PROCESSES = Path("/proc")


class Owner(NamedTuple):
    """Owner of a lock."""

    pid: int
    host: str
    born: str
    """Start time of the process, in the kernel's count: process ids are reused."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def claim(path: Path) -> Iterator[Owner | None]:
    """Hold the lock file ``path`` for a while; if another live process has it, yield that one instead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = _take(path)
    try:
        yield other
    finally:
        if other is None:
            path.unlink(missing_ok=True)


def _take(path: Path) -> Owner | None:
    me = Owner(os.getpid(), socket.gethostname(), _born(os.getpid()) or "")
    # O_EXCL decides between hosts; on one host the guard, which dies with its process, keeps two
    # from finding the same dead owner, and one from reading what the other has not yet written
    with _alone(path.parent):
        while True:
            try:
                file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                other = _read(path)
                if other is None:
                    continue
                if other.host != me.host or _born(other.pid) == other.born:
                    return other
                path.unlink(missing_ok=True)
            else:
                with os.fdopen(file, "w") as stream:
                    json.dump(me._asdict(), stream)
                return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / _GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Owner | None:
    """Return the owner named in a lock file, or None if the file is gone."""
    try:
        owner = Owner(**json.loads(path.read_text()))
        if tuple(map(type, owner)) != (int, str, str):
            raise TypeError(f"expected a number and two texts, got {owner!r}")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        return Owner(0, f"an unknown host (see {path})", "")
    return owner


def _born(pid: int) -> str | None:
    """Return when a process of this host was started, or None if it does not run."""
    if not (_PROCESSES / "self").exists():  # as on macOS
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        # the name, in parentheses, may hold anything; after it come state, …, and as the 20th the start
        fields = (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
