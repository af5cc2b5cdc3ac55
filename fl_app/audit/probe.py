"""Innermost mod of every client function: the content of a reply before the app's mods change it."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from fl_app.flower.copies import copy_message


class Probe:
    """Remembers the last reply of a client function during one exchange."""

    def __init__(self) -> None:
        self._content: RecordDict | None = None

    def begin(self) -> None:
        """Forget the exchange before."""
        self._content = None

    def end(self) -> RecordDict | None:
        """Return the content of the innermost reply; None if the function was not called or failed."""
        return self._content

    def __call__(
        self, message: Message, context: Context, call_next: Callable[[Message, Context], Message]
    ) -> Message:
        """Pass the message on and look at the reply."""
        reply = call_next(message, context)
        if reply.has_content():
            self._content = copy_message(reply).content
        return reply
