"""Messages between server and clients, as a tap below every strategy records them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from flwr.app import Context, Message, RecordDict

from fl_app.flower.internals import serialised_size

MESSAGE_ROUND = re.compile(r"round", re.IGNORECASE)


@dataclass
class Exchange:
    """One order and its reply."""

    order: Message
    reply: Message
    context: Context
    """The client's context before the order."""
    inner: RecordDict | None
    """Content of the reply before the app's mods changed it; None if it is not known."""
    seed: int
    round: int
    client: int
    """Partition id of the client."""

    @property
    def kind(self) -> str:
        """``train``, ``evaluate`` or ``query``, without the action."""
        return self.order.metadata.message_type.partition(".")[0]

    @property
    def failed(self) -> bool:
        """Whether the client answered with an error."""
        return self.reply.has_error()


@dataclass
class Traffic:
    """All exchanges of a run, in order."""

    exchanges: list[Exchange] = field(default_factory=list)

    def of(self, kind: str) -> list[Exchange]:
        """Return the exchanges of a kind that the clients answered."""
        return [exchange for exchange in self.exchanges if exchange.kind == kind and not exchange.failed]

    def cohorts(self) -> list[int]:
        """Return the number of clients that were asked to train, by round."""
        trained = [exchange for exchange in self.exchanges if exchange.kind == "train"]
        rounds = sorted({exchange.round for exchange in trained})
        return [len({e.client for e in trained if e.round == number}) for number in rounds]

    def bytes(self) -> int:
        """Return the serialised bytes of all replies."""
        return sum(serialised_size(e.reply.content) for e in self.exchanges if not e.failed)

    def errors(self) -> list[str]:
        """Return what the clients' errors say, each once."""
        return list(dict.fromkeys(str(e.reply.error.reason) for e in self.exchanges if e.failed))
