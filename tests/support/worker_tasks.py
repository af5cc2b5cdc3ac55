"""What worker processes of the tests are given to do: they import it by name."""

from __future__ import annotations

import os
import signal
import time

from fl_app.console.progress import track


def prepare() -> None:
    """Do nothing before the first task."""


def double(task: object) -> object:
    """Return the double, or end the process if that is asked for."""
    if task == "die":
        os._exit(7)
    if task == "stay":
        time.sleep(600)
    if task == "ctrl-c":
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with track("doubling", 2) as advance:
        advance(1, "half")
    return task * 2
