"""Quick end of a process: the search for garbage among torch's objects takes longer than all else."""

from __future__ import annotations

import atexit
import gc


def end_without_search() -> None:
    """Let the interpreter leave its objects to the operating system when it ends."""
    atexit.unregister(gc.freeze)  # a process registers it once
    atexit.register(gc.freeze)
