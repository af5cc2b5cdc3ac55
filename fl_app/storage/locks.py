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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fl_app.storage.tree_file import replace_file

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


_NOBODY = Owner(0, "", "")


@contextmanager
def claim(path: Path) -> Iterator[Owner | None]:
    """Hold the lock file ``path`` for a while; if another live process has it, yield that one instead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    other = _take(path)
    try:
        yield other
    finally:
        if other is None:
            with suppress(OSError):  # it must not hide how the work ended; a dead owner's lock does not count
                path.unlink()


def _take(path: Path) -> Owner | None:
    me = Owner(os.getpid(), socket.gethostname(), _born(os.getpid()) or "")
    # the link decides between hosts; on one host the guard, which dies with its process, keeps two
    # from finding the same dead owner
    with _alone(path.parent):
        while True:
            try:
                _put(path, json.dumps(me._asdict()).encode())
            except FileExistsError:
                other = _read(path)
                if other is None:
                    continue
                if other != _NOBODY and (other.host != me.host or _born(other.pid) == other.born):
                    return other
                path.unlink(missing_ok=True)
            else:
                return None


def _put(path: Path, content: bytes) -> None:
    """Write a new file with all of its content at once; if there is one already, a FileExistsError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        replace_file(draft, [content])
        try:
            os.link(draft, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if path.exists():
                raise FileExistsError(path) from None
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / _GUARD).open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> Owner | None:
    """Return the owner named in a lock file, or None if the file is gone.

    A lock appears with all of its content: what is empty, or zeros, or cut off was left by a crash, and has
    no owner.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        return _NOBODY
    try:
        owner = Owner(**content)
        if tuple(map(type, owner)) != (int, str, str):
            raise TypeError(f"expected a number and two texts, got {owner!r}")
    except TypeError:  # as another version may write it
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
