"""One deadline for all exchanges of a round, whatever each of them is given."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from fl_app.flower.forwarding import ForwardingGrid


class Deadline:
    """The end of the current round. An exchange gets a share of the time that is left, by its kind."""

    def __init__(self, seconds: float, shares: Mapping[str, float]) -> None:
        if not seconds > 0:
            raise ValueError(f"Deadline: seconds must be above 0, got {seconds}")
        self.seconds = seconds
        self._shares = shares
        self._end = time.monotonic() + seconds

    def begin(self) -> None:
        """Start the clock of a round."""
        self._end = time.monotonic() + self.seconds

    def share_of(self, kind: str) -> float:
        """Return the seconds that an exchange of a kind may take from now on."""
        return max(0.0, self._end - time.monotonic()) * self._shares.get(kind, 1.0)


class DeadlineGrid(ForwardingGrid):
    """A grid whose exchanges share the round's deadline: a silent client delays the round only once."""

    def __init__(self, grid: Grid, deadline: Deadline) -> None:
        super().__init__(grid)
        self._deadline = deadline

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, until the round's deadline at the latest."""
        waiting = list(messages)
        if not waiting:
            return []
        left = self._deadline.share_of(waiting[0].metadata.message_type)
        return self._grid.send_and_receive(waiting, timeout=left if timeout is None else min(left, timeout))
