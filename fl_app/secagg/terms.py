"""Terms of a secure round, which every client must accept before it sends anything.

Every key and every message contains their digest, so different terms for one client are detected at once.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Collection
from dataclasses import dataclass

from fl_app.secagg.errors import ProtocolError, QuorumError
from fl_app.secagg.fixed_point import FixedPoint
from fl_app.secagg.graph import Neighbourhood
from fl_app.secagg.reader import Reader, pack_clients

FEWEST_CLIENTS = 2
"""Fewest clients of a round: the sum over one client would be its vector."""
MOST_CLIENTS = 10_000
MOST_VALUES = 1 << 31
RUN_BYTES = 16
HASH_BYTES = 32
_MAGIC = b"FLSA\x03T"
_LAYOUT = struct.Struct(f"<{RUN_BYTES}sII{HASH_BYTES}sIQddBBIII")
_COMPLETE = (0, 0, 0)


@dataclass(frozen=True)
class Terms:
    """One attempt at one round."""

    run: bytes
    """16 random bytes that the server draws once per run."""
    round: int
    attempt: int
    """Number of starts of this round; every attempt has new keys and new noise."""
    job: bytes
    """32 bytes: the digest of the whole job of the round, see `Job`."""
    participants: tuple[int, ...]
    """Client ids, ascending."""
    threshold: int
    """Number of clients that must answer each exchange."""
    size: int
    """Values in a vector."""
    fixed_point: FixedPoint
    signed: bool = False
    """True if clients sign key adverts and survivor lists with pinned identities."""
    neighbourhood: Neighbourhood | None = None
    """Sparse graph; None: the complete graph."""

    def __post_init__(self) -> None:
        """Refuse terms under which the protocol protects nobody."""
        for name, value, length in (("run", self.run, RUN_BYTES), ("job", self.job, HASH_BYTES)):
            if len(value) != length:
                raise ValueError(f"Terms: {name} must have {length} bytes, got {len(value)}")
        for name, number in (("round", self.round), ("attempt", self.attempt)):
            if not 0 <= number < 2**32:
                raise ValueError(f"Terms: {name} must be in [0, 2**32), got {number}")
        n = len(self.participants)
        if not FEWEST_CLIENTS <= n <= MOST_CLIENTS:
            raise ValueError(f"Terms: expected {FEWEST_CLIENTS} to {MOST_CLIENTS} participants, got {n}")
        if list(self.participants) != sorted(set(self.participants)) or self.participants[0] < 0:
            raise ValueError(f"Terms: participants must ascend, got {list(self.participants)}")
        if self.participants[-1] >= 2**32 - 1:
            raise ValueError(f"Terms: a client id must be below 2**32 - 1, got {self.participants[-1]}")
        if not smallest_threshold(n) <= self.threshold <= n:
            raise ValueError(
                f"Terms: the threshold of {n} clients must be in [{smallest_threshold(n)}, {n}], "
                f"got {self.threshold}"
            )
        if not 1 <= self.size <= MOST_VALUES:
            raise ValueError(f"Terms: size must be in [1, {MOST_VALUES}], got {self.size}")
        if self.neighbourhood is not None and self.neighbourhood.ring > n:
            raise ValueError(f"Terms: a ring of {self.neighbourhood.ring} needs more than {n} clients")
        self.fixed_point.check_room(n)

    @property
    def ring(self) -> int:
        """Number of clients that must be in the keyring."""
        if self.neighbourhood is None:
            return self.threshold
        return max(self.threshold, self.neighbourhood.ring)

    @property
    def quorum(self) -> int:
        """Number of holders of one client's shares that must answer."""
        return self.threshold if self.neighbourhood is None else self.neighbourhood.quorum

    @functools.cached_property
    def digest(self) -> bytes:
        """The SHA-256 of the terms."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def name(self) -> str:
        """The round and the attempt, for messages."""
        return f"round {self.round} attempt {self.attempt}"

    def point(self, client: int) -> int:
        """Return the point of ``client`` at which polynomials are evaluated."""
        return self._points[client]

    @functools.cached_property
    def _points(self) -> dict[int, int]:
        return {client: i + 1 for i, client in enumerate(self.participants)}

    def to_bytes(self) -> bytes:
        """Write the terms; equal terms give equal bytes."""
        grid, near = self.fixed_point, self.neighbourhood
        return b"".join(
            [
                _MAGIC,
                _LAYOUT.pack(
                    self.run,
                    self.round,
                    self.attempt,
                    self.job,
                    self.threshold,
                    self.size,
                    grid.bound,
                    grid.step,
                    grid.bits,
                    self.signed,
                    *(_COMPLETE if near is None else (near.degree, near.quorum, near.ring)),
                ),
                pack_clients(self.participants),
            ]
        )

    @classmethod
    def from_bytes(cls, blob: bytes) -> Terms:
        """Read terms; refuse what no valid server writes."""
        reader = Reader(blob, "terms from the server")
        reader.expect(_MAGIC)
        run, round, attempt, job, threshold, size, bound, step, bits, signed, *near = _LAYOUT.unpack(
            reader.take(_LAYOUT.size)
        )
        participants = reader.clients(MOST_CLIENTS)
        reader.end()
        if signed > 1:
            raise ProtocolError(f"terms from the server: expected signed to be 0 or 1, got {signed}")
        try:
            grid = FixedPoint(bound, step, bits)
            graph = None if tuple(near) == _COMPLETE else Neighbourhood(*near)
            return cls(run, round, attempt, job, participants, threshold, size, grid, bool(signed), graph)
        except ValueError as error:
            raise ProtocolError(f"terms from the server: {error}") from None


def smallest_threshold(clients: int) -> int:
    """Return floor(2n/3) + 1.

    Two different survivor lists would need 2t answers; with fewer than a third of the clients colluding,
    there are not that many.
    """
    return 2 * clients // 3 + 1


def check_quorum(available: Collection[int], *, needed: int, what: str) -> None:
    """Refuse to start with too few clients, before anything is sent."""
    if len(available) < max(needed, FEWEST_CLIENTS):
        raise QuorumError(what, needed=max(needed, FEWEST_CLIENTS), present=available)
