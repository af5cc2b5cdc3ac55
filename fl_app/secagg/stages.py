"""Client state between two messages, as bytes.

A client is rebuilt for every message, so its memory must fit into bytes that Flower's `Context` holds. Each
stage keeps only what the next one needs: a used secret is not written again.
The bytes hold secrets. They stay on the client, and no `repr` shows them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import ClassVar

from fl_app.secagg.envelopes import HeldShares
from fl_app.secagg.errors import ProtocolError
from fl_app.secagg.keys import KEY_BYTES
from fl_app.secagg.reader import Reader, pack_clients
from fl_app.secagg.shamir import SECRET_BYTES, SHARE_BYTES
from fl_app.secagg.terms import HASH_BYTES, MOST_CLIENTS, Terms

_MAGIC = b"FLSS\x02"
_MOST_TERMS = 1 << 20


@dataclass(frozen=True)
class Offered:
    """After exchange 1: own secrets."""

    terms: Terms
    client: int
    sealing_key: bytes = field(repr=False)
    masking_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    letter: ClassVar[bytes] = b"O"
    done: ClassVar[str] = "offered its keys"

    def body(self) -> bytes:
        """Write all but terms and client."""
        return self.sealing_key + self.masking_key + self.seed

    @classmethod
    def of_body(cls, terms: Terms, client: int, reader: Reader) -> Offered:
        """Read `body`."""
        return cls(terms, client, reader.take(KEY_BYTES), reader.take(KEY_BYTES), reader.take(SECRET_BYTES))


@dataclass(frozen=True)
class Peer:
    """Another client (or this one) as seen after exchange 2."""

    masking_key: bytes
    """Its public key for pair masks."""
    opener: bytes = field(repr=False)
    """Key of the envelope that it sends to this client."""


@dataclass(frozen=True)
class Shared:
    """After exchange 2: own secrets for the masks, and the others' keys."""

    terms: Terms
    client: int
    masking_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    keyring_hash: bytes
    ring: tuple[int, ...]
    """Clients of the keyring."""
    peers: dict[int, Peer]
    """This client and its neighbours."""

    letter: ClassVar[bytes] = b"S"
    done: ClassVar[str] = "shared its secrets"

    def body(self) -> bytes:
        """Write all but terms and client."""
        rows = [peer.masking_key + peer.opener for peer in self.peers.values()]
        own = self.masking_key + self.seed + self.keyring_hash + pack_clients(self.ring)
        return b"".join([own, pack_clients(tuple(self.peers)), *rows])

    @classmethod
    def of_body(cls, terms: Terms, client: int, reader: Reader) -> Shared:
        """Read `body`."""
        masking_key, seed = reader.take(KEY_BYTES), reader.take(SECRET_BYTES)
        keyring_hash, ring = reader.take(HASH_BYTES), reader.clients(MOST_CLIENTS)
        clients = reader.clients(MOST_CLIENTS)
        rows = reader.rows(len(clients), 2 * KEY_BYTES)
        peers = {
            peer: Peer(row[:KEY_BYTES], row[KEY_BYTES:]) for peer, row in zip(clients, rows, strict=True)
        }
        return cls(terms, client, masking_key, seed, keyring_hash, ring, peers)


@dataclass(frozen=True)
class Holding:
    """After exchange 3: the others' shares; own secrets are gone."""

    terms: Terms
    client: int
    transcript: bytes
    owners: tuple[int, ...]
    """Clients that gave shares to anybody."""
    shares: dict[int, HeldShares]
    """By owner, of this client and its neighbours."""
    endorsed: tuple[int, ...] = ()
    """The survivor list that this client signed, in a signed round."""

    letter: ClassVar[bytes] = b"H"
    done: ClassVar[str] = "sent its masked vector"

    def body(self) -> bytes:
        """Write all but terms and client."""
        rows = [held.seed + held.masking_key for held in self.shares.values()]
        lists = [pack_clients(listed) for listed in (self.owners, self.endorsed, tuple(self.shares))]
        return b"".join([self.transcript, *lists, *rows])

    @classmethod
    def of_body(cls, terms: Terms, client: int, reader: Reader) -> Holding:
        """Read `body`."""
        transcript = reader.take(HASH_BYTES)
        owners, endorsed, circle = (reader.clients(MOST_CLIENTS) for _ in range(3))
        rows = reader.rows(len(circle), 2 * SHARE_BYTES)
        shares = {
            owner: HeldShares(row[:SHARE_BYTES], row[SHARE_BYTES:])
            for owner, row in zip(circle, rows, strict=True)
        }
        return cls(terms, client, transcript, owners, shares, endorsed)


@dataclass(frozen=True)
class Finished:
    """After the last exchange: a note that this client has answered, without secrets."""

    terms: Terms
    client: int

    letter: ClassVar[bytes] = b"F"
    done: ClassVar[str] = "answered its one unmasking request"

    def body(self) -> bytes:
        """Write nothing."""
        return b""

    @classmethod
    def of_body(cls, terms: Terms, client: int, reader: Reader) -> Finished:
        """Read `body`."""
        return cls(terms, client)


Stage = Offered | Shared | Holding | Finished
_STAGES: tuple[type[Stage], ...] = (Offered, Shared, Holding, Finished)


def write_stage(stage: Stage) -> bytes:
    """Write a client's memory."""
    terms = stage.terms.to_bytes()
    head = struct.pack("<II", stage.client, len(terms))
    return b"".join([_MAGIC, stage.letter, head, terms, stage.body()])


def read_stage(state: bytes) -> Stage:
    """Read a client's memory."""
    reader = Reader(state, "the state of a client")
    reader.expect(_MAGIC)
    letter = reader.take(1)
    client = reader.count(2**32 - 1)
    terms = Terms.from_bytes(reader.take(reader.count(_MOST_TERMS)))
    kind = next((kind for kind in _STAGES if kind.letter == letter), None)
    if kind is None:
        letters = ", ".join(repr(kind.letter) for kind in _STAGES)
        raise ProtocolError(f"the state of client {client}: expected one of {letters}, got {letter!r}")
    stage = kind.of_body(terms, client, reader)
    reader.end()
    return stage
