"""The frame around every command: errors as one line, interruptions and closed pipes as exit codes."""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Callable

from fl_app.console.ending import end_without_search
from fl_app.console.stated_failure import StatedFailure
from fl_app.console.streams import drop_output, prepare_streams, say_error
from fl_app.console.words import printable
from fl_app.storage.shortage import shortage

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
    interrupted: str = "what was finished by then is kept",
) -> None:
    """Run ``command``; print one line for every error that is not a defect, or when it is ``interrupted``."""
    prepare_streams()
    end_without_search()
    logging.raiseExceptions = False  # a log on a full disk is no reason for a traceback
    _say_no_shortage_twice()
    try:
        try:
            command()
        finally:
            sys.stdout.flush()  # here, not at exit: a closed pipe shows only now
    except KeyboardInterrupt as interruption:
        _say(f"{name}: interrupted; {str(interruption) or interrupted}")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        drop_output()
        sys.exit(READER_GONE)
    except Exception as error:
        ran_out = shortage(error)
        stated = isinstance(error, (*_MENDABLE, OSError, StatedFailure))
        if ran_out is None and not stated:
            raise
        logging.getLogger(__name__).debug("failed", exc_info=True)
        first = str(error).partition("\n")[0] if ran_out else str(error)  # torch goes on with its own stack
        # it may quote a folder that a stranger made
        _say(printable(": ".join(word for word in (name, ran_out, first) if word), lines=True))
        sys.exit(MISTAKE if isinstance(error, _MENDABLE) and ran_out is None else FAILED)


def _say_no_shortage_twice() -> None:
    """Keep quiet about a lack of memory in a library's callbacks: the command itself meets it, too."""
    honest = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        error = unraisable.exc_value
        if error is None or shortage(error) is None:
            honest(unraisable)

    sys.unraisablehook = hook


def _say(line: str) -> None:
    """Print to standard error, and let what cannot be printed elsewhere not hide it."""
    if _output_is_full():
        drop_output()
    say_error(line)


def _output_is_full() -> bool:
    """Say whether what was printed cannot be written: it would fail once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _reader_is_gone() -> bool:
    """Say whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
