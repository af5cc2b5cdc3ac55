"""Worker processes for a list of tasks; a worker that dies fails only its task and is replaced.

The parent process forwards an interruption to its workers, so that each task ends as an interrupted
run does.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

from fl_app.console.ending import end_without_search
from fl_app.console.progress import Report, relay_to, show_relayed

Task = TypeVar("Task")
Result = TypeVar("Result")

_SECONDS_TO_END = 30.0


class Died(NamedTuple):
    """Outcome of a task whose process died."""

    exit_code: int | None


class _Done(NamedTuple, Generic[Result]):
    result: Result


class _Worker:
    """One process and its current task."""

    def __init__(self, work: Callable[[Any], Any], prepare: Callable[[], None]) -> None:
        # spawned, because torch's threads do not survive a fork
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, prepare))
        # a terminal interrupts all its processes, also those that still import
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # so that its death closes the pipe
        self.task: int | None = None


def work_off(
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    *,
    jobs: int,
    prepare: Callable[[], None],
    begun: Callable[[int], None],
) -> Iterator[tuple[int, Result | Died]]:
    """Yield each task's number and result as it ends; ``begun`` is called when a task is handed out.

    ``work`` and ``prepare``, which every process calls first, must be module-level functions.
    """
    left = list(range(len(tasks)))
    workers: list[_Worker] = []

    def hand_out(worker: _Worker) -> None:
        worker.task = left.pop(0)
        begun(worker.task)
        worker.connection.send(tasks[worker.task])

    try:
        while left or any(worker.task is not None for worker in workers):
            while left and len(workers) < min(jobs, len(tasks)):
                workers.append(_Worker(work, prepare))
                hand_out(workers[-1])
            for worker in _ready(workers):
                told = _hear(worker)
                if told is None:
                    continue
                number, worker.task = worker.task, None
                if isinstance(told, Died):
                    workers.remove(worker)
                elif left:
                    hand_out(worker)
                if number is not None:
                    yield number, told if isinstance(told, Died) else told.result
    finally:
        _end(workers)


def _ready(workers: Sequence[_Worker]) -> list[_Worker]:
    heard = wait([worker.connection for worker in workers if worker.task is not None])
    return [worker for worker in workers if worker.connection in heard]


def _hear(worker: _Worker) -> _Done[Any] | Died | None:
    """Return the outcome of a worker's task; None for a report of progress."""
    try:
        told = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        return Died(worker.process.exitcode)
    if isinstance(told, Report):
        show_relayed(worker.process.pid, told)
        return None
    if not isinstance(told, _Done):
        raise TypeError(f"work_off: expected a result from process {worker.process.pid}, got {told!r}")
    return told


def _end(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        if worker.task is None:
            with suppress(OSError):
                worker.connection.send(None)
        else:
            worker.process.terminate()
    for worker in workers:
        worker.process.join(_SECONDS_TO_END)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _serve(connection: Connection, work: Callable[[Any], Any], prepare: Callable[[], None]) -> None:
    # a terminal interrupts all its processes; here the parent decides and sends SIGTERM
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_without_search()
    with suppress(KeyboardInterrupt, EOFError, BrokenPipeError):
        relay_to(connection.send)
        prepare()
        while (task := connection.recv()) is not None:
            connection.send(_Done(work(task)))
