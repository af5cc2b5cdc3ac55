"""The frame around every command: errors as one line, interruptions and closed pipes as exit codes."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable

from fl_app.console.stated_failure import StatedFailure
from fl_app.console.words import printable

FAILED, MISTAKE, INTERRUPTED, READER_GONE = 1, 2, 130, 141
"""Exit codes; the last two are those of a process that SIGINT or SIGPIPE ended."""
_STDOUT = 1
_MENDABLE = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    TimeoutError,
)
"""Errors that the user can mend; ConfigError is a ValueError."""


def guarded(
    name: str,
    command: Callable[[], None],
    *,
    interrupted: str = "what there was by then is in the run's folder",
) -> None:
    """Run ``command``; print one line for an error that the user can mend, or when it is ``interrupted``."""
    try:
        try:
            command()
        finally:
            sys.stdout.flush()  # here, not at exit: a closed pipe shows only now
    except KeyboardInterrupt as interruption:
        print(printable(f"{name}: interrupted; {str(interruption) or interrupted}"), file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        # the interpreter flushes once more at exit, and would complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        sys.exit(READER_GONE)
    except (*_MENDABLE, StatedFailure) as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        # it may quote a folder that a stranger made
        print(printable(f"{name}: {error}", lines=True), file=sys.stderr)
        sys.exit(FAILED if isinstance(error, StatedFailure) else MISTAKE)


def _reader_is_gone() -> bool:
    """Say whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
