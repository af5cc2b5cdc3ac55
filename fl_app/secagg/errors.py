"""Errors of a secure round on which callers act."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


class ProtocolError(ValueError):
    """Refused message: it is malformed, or it breaks a rule of the protocol.

    The round goes on without its sender. The text names the sender, the expectation and what came; it
    never holds a secret or a value of a vector.
    """


class RoundFailed(RuntimeError):
    """Failed round: there is no sum, and the model must not change."""


class SpoiledSum(RoundFailed):
    """Failure of a round whose sum is beyond what its clients may send."""

    def __init__(self, what: str, clients: Sequence[int]) -> None:
        super().__init__(what)
        self.clients = clients
        """Clients of the sum; at least one of them lied."""


class QuorumError(RoundFailed):
    """Too few clients are left."""

    def __init__(
        self,
        what: str,
        *,
        needed: int,
        present: Collection[int],
        missing: Collection[int] = (),
        refused: Mapping[int, str] | None = None,
    ) -> None:
        self.needed = needed
        self.present = tuple(sorted(present))
        self.missing = tuple(sorted(missing))
        self.refused = dict(refused or {})
        text = f"{what}: expected at least {needed} clients, got {len(self.present)}: {list(self.present)}"
        if self.missing:
            text += f"; missing: {list(self.missing)}"
        if self.refused:
            text += "; refused: " + "; ".join(self.refused[client] for client in sorted(self.refused))
        super().__init__(text)
