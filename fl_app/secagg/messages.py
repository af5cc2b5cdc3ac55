"""Messages of the protocol and their byte encoding.

Every message begins with the same header: kind, sender, round and attempt, digest of the terms. The
reader knows the length of the rest, or checks it against the remaining bytes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

from fl_app.secagg.envelopes import COMMITMENT_BYTES, ENVELOPE_BYTES
from fl_app.secagg.errors import ProtocolError
from fl_app.secagg.keys import KEY_BYTES
from fl_app.secagg.reader import Reader, pack_clients
from fl_app.secagg.shamir import SHARE_BYTES
from fl_app.secagg.terms import HASH_BYTES, Terms

SERVER = 2**32 - 1
"""Sender number of the server in a header."""
SIGNATURE_BYTES = 64
_MAGIC = b"FLSA\x01"
_HEADER = struct.Struct(f"<III{HASH_BYTES}s")
HEADER_BYTES = len(_MAGIC) + 1 + _HEADER.size


class Kind(enum.Enum):
    """The letter of each message."""

    ADVERT = b"A"
    KEYRING = b"K"
    SHARES = b"S"
    DELIVERY = b"D"
    MASKED = b"M"
    SURVIVORS = b"L"
    ENDORSEMENT = b"E"
    REQUEST = b"R"
    UNMASKING = b"U"


@dataclass(frozen=True)
class Advert:
    """Exchange 1, up: a client's public keys of this round."""

    client: int
    sealing_key: bytes
    """For envelopes."""
    masking_key: bytes
    """For pair masks."""
    signature: bytes = b""

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.ADVERT, self.client, terms, self.row)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms, *, client: int) -> Advert:
        """Read what ``client`` sent."""
        reader = _open(blob, Kind.ADVERT, client, terms)
        return cls.of_row(client, reader.rest_of(_row_bytes(terms)))

    @property
    def row(self) -> bytes:
        """The advert without its client."""
        return self.sealing_key + self.masking_key + self.signature

    @classmethod
    def of_row(cls, client: int, row: bytes) -> Advert:
        """Read `row`."""
        return cls(client, row[:KEY_BYTES], row[KEY_BYTES : 2 * KEY_BYTES], row[2 * KEY_BYTES :])


@dataclass(frozen=True)
class Keyring:
    """Exchange 2, down: the adverts of all clients that answered, by client."""

    adverts: tuple[Advert, ...]

    @property
    def clients(self) -> tuple[int, ...]:
        """Clients of the keyring."""
        return tuple(advert.client for advert in self.adverts)

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        rows = [advert.row for advert in self.adverts]
        return _frame(Kind.KEYRING, SERVER, terms, pack_clients(self.clients), *rows)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms) -> Keyring:
        """Read the server's message."""
        reader = _open(blob, Kind.KEYRING, SERVER, terms)
        clients = reader.clients(len(terms.participants))
        rows = reader.rows(len(clients), _row_bytes(terms))
        reader.end()
        return cls(tuple(map(Advert.of_row, clients, rows)))


@dataclass(frozen=True)
class Shares:
    """Exchange 2, up: one envelope for every client of the sender's circle, in its order."""

    client: int
    seed_commitment: bytes
    envelopes: tuple[bytes, ...]

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.SHARES, self.client, terms, self.seed_commitment, *self.envelopes)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms, *, client: int, holders: int) -> Shares:
        """Read what ``client`` sent to ``holders`` clients."""
        reader = _open(blob, Kind.SHARES, client, terms)
        commitment = reader.take(COMMITMENT_BYTES)
        envelopes = reader.rows(holders, ENVELOPE_BYTES)
        reader.end()
        return cls(client, commitment, envelopes)


@dataclass(frozen=True)
class Delivery:
    """Exchange 3, down: the clients that gave shares, and the envelopes from the holder's circle."""

    owners: tuple[int, ...]
    envelopes: tuple[bytes, ...]

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        count = struct.pack("<I", len(self.envelopes))
        return _frame(Kind.DELIVERY, SERVER, terms, pack_clients(self.owners), count, *self.envelopes)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms) -> Delivery:
        """Read the server's message."""
        reader = _open(blob, Kind.DELIVERY, SERVER, terms)
        owners = reader.clients(len(terms.participants))
        envelopes = reader.rows(reader.count(len(owners)), ENVELOPE_BYTES)
        reader.end()
        return cls(owners, envelopes)


@dataclass(frozen=True)
class Masked:
    """Exchange 3, up: a masked vector, packed by `fl_app.secagg.fixed_point.FixedPoint.pack`."""

    client: int
    packed: bytes

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.MASKED, self.client, terms, self.packed)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms, *, client: int) -> Masked:
        """Read what ``client`` sent."""
        reader = _open(blob, Kind.MASKED, client, terms)
        return cls(client, reader.rest_of(terms.size * terms.fixed_point.bits // 8))


@dataclass(frozen=True)
class Survivors:
    """Exchange 4 of a signed round, down: the clients whose vectors are in the sum."""

    clients: tuple[int, ...]

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.SURVIVORS, SERVER, terms, pack_clients(self.clients))

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms) -> Survivors:
        """Read the server's message."""
        reader = _open(blob, Kind.SURVIVORS, SERVER, terms)
        clients = reader.clients(len(terms.participants))
        reader.end()
        return cls(clients)


@dataclass(frozen=True)
class Endorsement:
    """Exchange 4 of a signed round, up: a survivor's signature of the list that it received."""

    client: int
    signature: bytes

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.ENDORSEMENT, self.client, terms, self.signature)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms, *, client: int) -> Endorsement:
        """Read what ``client`` sent."""
        reader = _open(blob, Kind.ENDORSEMENT, client, terms)
        return cls(client, reader.rest_of(SIGNATURE_BYTES))


@dataclass(frozen=True)
class Request:
    """The last exchange, down: the clients in the sum and, in a signed round, their signatures."""

    survivors: tuple[int, ...]
    endorsements: tuple[Endorsement, ...] = ()

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        signers = pack_clients([endorsement.client for endorsement in self.endorsements])
        signatures = [endorsement.signature for endorsement in self.endorsements]
        return _frame(Kind.REQUEST, SERVER, terms, pack_clients(self.survivors), signers, *signatures)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms) -> Request:
        """Read the server's message."""
        reader = _open(blob, Kind.REQUEST, SERVER, terms)
        survivors = reader.clients(len(terms.participants))
        signers = reader.clients(len(survivors))
        signatures = reader.rows(len(signers), SIGNATURE_BYTES)
        reader.end()
        return cls(survivors, tuple(map(Endorsement, signers, signatures)))


@dataclass(frozen=True)
class Unmasking:
    """The last exchange, up: one share of every client whose envelope was delivered, in that order.

    It is a share of the seed if that client survived, else of its masking key. If the envelope did not
    open, it is taken from `fl_app.secagg.envelopes.UNOPENED`.
    """

    client: int
    shares: tuple[bytes, ...] = field(repr=False)

    def to_bytes(self, terms: Terms) -> bytes:
        """Write the message."""
        return _frame(Kind.UNMASKING, self.client, terms, *self.shares)

    @classmethod
    def from_bytes(cls, blob: bytes, terms: Terms, *, client: int, owners: int) -> Unmasking:
        """Read what ``client`` sent about ``owners`` clients."""
        reader = _open(blob, Kind.UNMASKING, client, terms)
        shares = reader.rows(owners, SHARE_BYTES)
        reader.end()
        return cls(client, shares)


def _frame(kind: Kind, sender: int, terms: Terms, *content: bytes) -> bytes:
    header = _HEADER.pack(sender, terms.round, terms.attempt, terms.digest)
    return b"".join([_MAGIC, kind.value, header, *content])


def _open(blob: bytes, kind: Kind, sender: int, terms: Terms) -> Reader:
    what = f"{kind.name.lower()} from {_party(sender)}"
    reader = Reader(blob, what)
    reader.expect(_MAGIC)
    letter = reader.take(1)
    if letter != kind.value:
        came = next((other.name.lower() for other in Kind if other.value == letter), repr(letter))
        raise ProtocolError(f"{what}: expected a message of kind {kind.name.lower()}, got {came}")
    author, round, attempt, digest = _HEADER.unpack(reader.take(_HEADER.size))
    if author != sender:
        raise ProtocolError(f"{what}: expected {_party(sender)} as its sender, got {_party(author)}")
    if (round, attempt) != (terms.round, terms.attempt):
        raise ProtocolError(
            f"{what}: expected {terms.name}, got round {round} attempt {attempt}: old, or replayed"
        )
    if digest != terms.digest:
        raise ProtocolError(
            f"{what}: expected the terms {terms.digest.hex()[:16]}, got {digest.hex()[:16]}: "
            "another run, model, list of participants or setting"
        )
    return reader


def _party(sender: int) -> str:
    return "the server" if sender == SERVER else f"client {sender}"


def _row_bytes(terms: Terms) -> int:
    return 2 * KEY_BYTES + (SIGNATURE_BYTES if terms.signed else 0)
