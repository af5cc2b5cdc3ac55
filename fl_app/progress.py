"""One progress display for the whole process: rounds, clients of a round, steps of an attack.

Quiet when standard error is not a terminal, so that logs and pipes stay clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Advance = Callable[[int, str], None]
"""``advance(done, note)``: how far the task is, and a few words shown beside it."""

_console = Console(stderr=True)
_display: Progress | None = None
_tasks = 0


@contextmanager
def track(description: str, total: int) -> Iterator[Advance]:
    """Show a bar for a task of ``total`` steps; nested tasks share one display."""
    global _display, _tasks
    if _display is None:
        _display = _make()
        _display.start()
    display = _display
    _tasks += 1
    task = display.add_task(description, total=total, note="")
    try:
        yield lambda done, note: display.update(task, completed=done, note=note)
    finally:
        _tasks -= 1
        if _tasks == 0:
            display.stop()
            _display = None
        else:
            display.remove_task(task)


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
    )
