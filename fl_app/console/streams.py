"""Standard streams that no run depends on: closed ones, readers that go away, narrow encodings."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def prepare_streams() -> None:
    """Open streams that were closed, so that no file takes their numbers; spell signs that they lack."""
    while (handle := os.open(os.devnull, os.O_RDWR)) < len(_STREAMS):
        os.set_inheritable(handle, True)
    os.close(handle)
    for number, (name, mode) in enumerate(_STREAMS):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(line: str) -> None:
    """Print a line of a run that goes on whether somebody reads it or not."""
    try:
        print(line, flush=True)
    except OSError as error:  # the reader has gone, or a file of lines is on a full disk
        drop_output()
        say_error(f"standard output is lost, and the work goes on: {error}")


def say_error(line: str) -> None:
    """Print to standard error, which may be full or gone itself."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        _drop(2, sys.stderr)


def drop_output() -> None:
    """Send standard output nowhere from now on."""
    _drop(1, sys.stdout)


def _drop(number: int, stream: Any) -> None:
    """Send a stream nowhere, what it still holds included: the interpreter flushes once more at exit."""
    handle = os.open(os.devnull, os.O_WRONLY)
    os.dup2(handle, number)
    os.close(handle)
    with suppress(OSError, ValueError):
        stream.flush()
