"""One progress display for the whole process: cells, rounds, clients of a round, steps of an attack.

Where standard error is no terminal, a line every half minute says how far each task is. A worker
process has no display of its own: it relays its tasks to the process that has one.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fl_app.console.words import printable

Advance = Callable[[int, str], None]
"""``advance(done, note)``: how far the task is, and a few words shown beside it."""


class Report(NamedTuple):
    """Progress of a task in another process."""

    task: int
    description: str
    total: int
    done: int = 0
    note: str = ""
    ended: bool = False


_RELAY_EVERY_SECONDS = 0.2
_LINE_EVERY_SECONDS = 30.0
_console = Console(stderr=True)
_display: Progress | None = None
_tasks = 0
_relay: Callable[[Report], None] | None = None
_numbers = itertools.count()
_shown: dict[tuple[object, int], TaskID] = {}
_said: dict[tuple[object, int], float] = {}
"""When the last line was written of a task in another process."""


@contextmanager
def track(description: str, total: int) -> Iterator[Advance]:
    """Show a bar for a task of ``total`` steps; nested tasks share one display."""
    global _display, _tasks
    if _relay is not None:
        with _relayed(_relay, description, total) as relayed:
            yield relayed
        return
    if _display is None:
        _display = _make()
        _display.start()
    display = _display
    _tasks += 1
    task = display.add_task(description, total=total, note="")
    said = [time.monotonic()]

    def advance(done: int, note: str) -> None:
        display.update(task, completed=done, note=note)
        if not _console.is_terminal and time.monotonic() - said[0] > _LINE_EVERY_SECONDS:
            said[0] = time.monotonic()
            print(printable(progress_line(description, done, total, note)), file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        _tasks -= 1
        if _tasks == 0:
            display.stop()
            _display = None
        else:
            display.remove_task(task)


def say_before(line: str) -> None:
    """Print a line to standard error, unless this process's progress is shown among that of others."""
    if _relay is None and _display is None:
        print(printable(line), file=sys.stderr, flush=True)


def progress_line(description: str, done: int, total: int, note: str) -> str:
    """Return a task's progress in a line."""
    return f"{description}: {done} of {total}{f', {note}' if note else ''}"


def follow_search(advance: Advance) -> Callable[[int, int, float], None]:
    """Return a listener to the steps of an attack that moves a bar of 100 steps."""
    return lambda done, total, best: advance(100 * done // total, f"objective {best:.4f}")


def relay_to(send: Callable[[Report], None]) -> None:
    """Let this process report its tasks instead of showing them."""
    global _relay
    _relay = send


def show_relayed(who: object, report: Report) -> None:
    """Show a task of the process ``who`` in this process's display, if there is one."""
    if _display is None:
        return
    key = who, report.task
    if report.ended:
        if (ended := _shown.pop(key, None)) is not None:
            _display.remove_task(ended)
    elif key in _shown:
        if not _console.is_terminal and time.monotonic() - _said.get(key, 0.0) > _LINE_EVERY_SECONDS:
            _said[key] = time.monotonic()
            line = progress_line(report.description, report.done, report.total, report.note)
            print(printable(f"process {who}: {line}"), file=sys.stderr, flush=True)
        _display.update(_shown[key], completed=report.done, note=report.note)
    else:
        _said[key] = time.monotonic()
        _shown[key] = _display.add_task(report.description, total=report.total, note=report.note)


@contextmanager
def _relayed(send: Callable[[Report], None], description: str, total: int) -> Iterator[Advance]:
    report = Report(next(_numbers), description, total)
    said = 0.0

    def advance(done: int, note: str) -> None:
        nonlocal said
        if time.monotonic() - said > _RELAY_EVERY_SECONDS:
            said = time.monotonic()
            send(report._replace(done=done, note=note))

    send(report)
    try:
        yield advance
    finally:
        send(report._replace(ended=True))


def _make() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=_console,
        disable=not _console.is_terminal,
        # lines go above the bars; but what is piped away must not end in the display
        redirect_stdout=sys.stdout.isatty(),
    )
