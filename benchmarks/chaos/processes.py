"""Runs as forked children of one process that has imported everything: a run costs its own work alone."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fl_app.cli import new_attack
from fl_app.cli.guard import guarded
from fl_app.cli.new_attack import attack_again
from fl_app.console.logs import show_logs
from fl_app.experiments.job import run_job
from fl_app.running import federation
from fl_app.running.ownership import CHECKPOINT, STATE
from fl_app.running.resume import LastingRun

SECONDS = 300.0
"""After this time a run hangs."""
HANGS = "hangs"


class Child:
    """A forked process."""

    def __init__(self, work: Callable[[], None], log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.log = log
        self.pid = os.fork()
        if not self.pid:
            _serve(work, log)
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self) -> int | str:
        """Wait for the end; a process that does not end is killed."""
        deadline = time.monotonic() + SECONDS
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                return HANGS
            time.sleep(0.005)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def said(self) -> str:
        """Return all that it printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def warm(overrides: Sequence[str], folder: Path) -> None:
    """Run, interrupt and resume in this process: its children then have all modules and composed configs."""
    honest, rounds = LastingRun.round_ended, 0

    def round_ended(self: LastingRun, server_round: int) -> None:
        nonlocal rounds
        honest(self, server_round)
        rounds += 1
        if rounds == 3:
            raise KeyboardInterrupt

    LastingRun.round_ended = round_ended  # type: ignore[method-assign]
    try:
        with suppress(KeyboardInterrupt):
            run_job(list(overrides), folder=emptied(folder))
    finally:
        LastingRun.round_ended = honest  # type: ignore[method-assign]
    run_job([f"resume={folder}"], folder=folder)


def start(
    overrides: Sequence[str],
    folder: Path,
    log: Path,
    arm: Callable[[], None] | None = None,
    *,
    resume: bool | None = None,
) -> Child:
    """Run or resume in ``folder`` as the command does; ``arm`` prepares a fault in the child.

    ``resume``: None if there is a checkpoint.
    """
    resumes = (folder / CHECKPOINT / STATE).is_file() if resume is None else resume
    wanted = [f"resume={folder}"] if resumes else list(overrides)

    def work() -> None:
        show_logs(False)
        if arm is not None:
            arm()
        guarded("fl-app", lambda: print("announced", run_job(wanted, folder=folder)))

    return Child(work, log)


def attack(folder: Path, name: str, log: Path, arm: Callable[[], None] | None = None) -> Child:
    """Attack a finished run again, as ``fl-app-attack`` does."""

    def work() -> None:
        show_logs(False)
        if arm is not None:
            arm()
        guarded("fl-app-attack", lambda: print(attack_again(folder, [f"attack={name}"])))

    return Child(work, log)


federation.plot_partition = lambda *_, **__: None


def _brief_report(folder: Path | str) -> Path:
    """Write a page without pictures: they take longer than the whole run."""
    path = Path(folder) / "report.html"
    path.write_text("report")
    return path


federation.write_report = new_attack.write_report = _brief_report


def _serve(work: Callable[[], None], log: Path) -> None:
    code: int | str | None = 70
    try:
        os.setsid()
        out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def emptied(folder: Path) -> Path:
    """Return a folder that does not exist."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
