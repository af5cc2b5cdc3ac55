"""Kinds of faults: at an exact point, by the child itself, and at a random moment, by others."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.chaos.processes import Child
from fl_app.client.client import Client
from fl_app.client.vector_client import VectorClient

Arm = Callable[[], None]
_ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "EROFS")}
_CPU = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
EXACT = ("KILL", "INT", "TERM", *_ERRORS, "ENOSPC for good")
"""Faults at the k-th operation on a file of the run."""
IN_CLIENTS = ("MemoryError", "torch's RuntimeError", "EMFILE in a client", "KILL in a client")
"""Faults at the k-th order that a client works on."""
MOMENTS = ("KILL", "INT", "TERM", "STOP and CONT", "less memory")
"""Faults at a random moment."""


def operations(folder: Path, act: Callable[[int, str], None]) -> Arm:
    """Call ``act`` with the number and the kind of every operation that changes a file of the run."""

    def arm() -> None:
        number = 0
        where = str(folder)

        def point(kind: str, path: object) -> None:
            nonlocal number
            if where in str(path):
                number += 1
                act(number, kind)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "open":
                path, mode, flags = args
                writes = isinstance(mode, str) and bool(set("wax+") & set(mode))
                if writes or (mode is None and isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)):
                    # a full disk lets a file be opened that is there, and its bytes be replaced
                    point("change" if isinstance(mode, str) and "r" in mode else "open", path)
            elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"):
                point(event, args[0])

        honest = os.fsync

        def fsync(handle: int) -> None:
            point("fsync", os.readlink(f"/proc/self/fd/{handle}"))
            honest(handle)

        os.fsync = fsync
        sys.addaudithook(hook)

    return arm


def exact(folder: Path, fault: str, k: int, struck: Path) -> Arm:
    """Arm a fault at the ``k``-th operation; the file ``struck`` is there once it has struck."""
    done = False

    def act(number: int, kind: str) -> None:
        nonlocal done
        if fault == "ENOSPC for good" and number >= k and kind in ("open", "fsync", "os.mkdir"):
            _mark(struck)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if number != k or done:
            return
        done = True
        if fault != "ENOSPC for good":
            _mark(struck)
        if fault in ("KILL", "TERM"):
            os.kill(os.getpid(), signal.Signals[f"SIG{fault}"])
            time.sleep(0.05)
        elif fault == "INT":
            raise KeyboardInterrupt
        elif fault in _ERRORS:
            raise OSError(_ERRORS[fault], os.strerror(_ERRORS[fault]))

    return operations(folder, act)


def count(folder: Path, into: Path) -> Arm:
    """Arm a count of all operations, kept in a file of its own."""
    return operations(folder, lambda number, _: into.write_text(str(number)))


def _mark(path: Path) -> None:
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def in_client(fault: str, k: int, struck: Path) -> Arm:
    """Arm a fault at the ``k``-th order that any client works on; the file ``struck`` is there then."""

    def arm() -> None:
        calls = 0
        for kind in (Client, VectorClient):
            honest = kind.answer

            def answer(self: Client, *args: Any, honest: Any = honest, **kwargs: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == k:
                    _mark(struck)
                    _strike_client(fault)
                return honest(self, *args, **kwargs)

            kind.answer = answer  # type: ignore[method-assign]

    return arm


def _strike_client(fault: str) -> None:
    if fault == "MemoryError":
        raise MemoryError
    if fault == "torch's RuntimeError":
        raise RuntimeError(_CPU)
    if fault == "EMFILE in a client":
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    os.kill(os.getpid(), signal.SIGKILL)


def at_a_moment(child: Child, fault: str, rng: random.Random, longest: float) -> bool:
    """Do something to a child after a random time; return whether it was still at work."""
    until = time.monotonic() + rng.uniform(0, longest)
    while time.monotonic() < until and child.poll() is None:
        time.sleep(0.002)
    if child.poll() is not None:
        return False
    if fault == "STOP and CONT":
        child.send(signal.SIGSTOP)
        time.sleep(rng.uniform(0.01, 0.2))
        child.send(signal.SIGCONT)
    elif fault == "less memory":
        pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + rng.randrange(1 << 20)
        resource.prlimit(child.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    else:
        child.send(signal.Signals[f"SIG{fault}"])
    return True


class Disk:
    """A disk of its own that can be filled: a tmpfs, which needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
        self.is_there = subprocess.run(command, capture_output=True).returncode == 0

    def fill(self) -> None:
        """Use up all of its space."""
        with (self.folder / "fill").open("wb", buffering=0) as stream:
            try:
                while True:
                    stream.write(bytes(4096))
            except OSError:
                pass

    def empty(self) -> None:
        """Give the space back."""
        (self.folder / "fill").unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if self.is_there:
            subprocess.run(["umount", str(self.folder)], capture_output=True)
