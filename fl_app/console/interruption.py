"""Ctrl-C as a request: the round ends first, so that it can be saved, but nobody waits long for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_SECONDS = 1.0
"""The longest time that a round gets to end by itself."""
_asked = False


def asked_to_stop() -> bool:
    """Say whether the round under way is to be the last."""
    return _asked


@contextmanager
def stopping_after_rounds(seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Let an interruption wait for the round's end, or for ``seconds``; a second one does not wait."""
    global _asked
    handled = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is signal.default_int_handler
    ]
    if threading.current_thread() is not threading.main_thread() or not handled:
        yield
        return
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    _asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        global _asked
        if _asked:
            signal.default_int_handler(number, frame)
        _asked = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    for number in handled:
        signal.signal(number, ask)
    try:
        yield
        if _asked:  # after the last round, which nobody asks about
            raise KeyboardInterrupt
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number in handled:
            signal.signal(number, signal.default_int_handler)
        signal.signal(signal.SIGALRM, before)
        _asked = False
