"""Grid that notices a run in which every client failed."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message

from fl_app.console.stated_failure import StatedFailure, most_frequent
from fl_app.flower.forwarding import ForwardingGrid

_TRAIN = "train"


class WatchedGrid(ForwardingGrid):
    """Counts the answers to training messages, whatever strategy asks."""

    answered = 0
    """Number of answers that are no errors."""
    reasons: tuple[str, ...] = ()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self._counted(self._grid.send_and_receive(messages, timeout=timeout))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""
        return self._counted(self._grid.pull_messages(message_ids))

    def check(self) -> None:
        """Raise `StatedFailure` if clients were to train and all of them failed."""
        if self.reasons and not self.answered:
            raise StatedFailure(f"no client trained: {most_frequent(self.reasons)}")

    def _counted(self, replies: Iterable[Message]) -> list[Message]:
        listed = list(replies)
        for reply in listed:
            if reply.metadata.message_type.split(".")[0] != _TRAIN:
                continue
            if reply.has_error():
                self.reasons = (*self.reasons, reply.error.reason or "no reason")
            else:
                self.answered += 1
        return listed
