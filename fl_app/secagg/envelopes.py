"""Encrypted shares from owner to holder, tagged so that a wrong one can be attributed.

An envelope holds a holder's share of the owner's seed (of its self mask) and of its masking key. It also
carries a tag of each share: a hash bound to the share, its owner and its holder. A holder checks the shares
it receives against the tags, so an owner cannot send wrong ones. The server checks the shares that holders
return against the same tags, so a holder cannot, either. A share is as unpredictable as the secret, so its
hash reveals nothing about it.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import struct
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fl_app.secagg.errors import ProtocolError
from fl_app.secagg.shamir import SHARE_BYTES

_TAG_BYTES = 16
_NONCE_BYTES = 12
_SEAL_BYTES = 16
ENVELOPE_BYTES = 2 * _TAG_BYTES + _NONCE_BYTES + 2 * SHARE_BYTES + _SEAL_BYTES
COMMITMENT_BYTES = 32


class Secret(enum.Enum):
    """The two secrets of a client; the server learns one of them, never both."""

    SEED = "the self mask's seed"
    """The server asks for it if the client survived."""
    MASKING_KEY = "the masking key"
    """The server asks for it if the client dropped out after it gave shares."""


@dataclass(frozen=True)
class Passage:
    """Owner, holder and round of an envelope."""

    digest: bytes
    owner: int
    holder: int

    def tag(self, secret: Secret, share: bytes) -> bytes:
        """Return the hash that only this share has."""
        where = struct.pack("<II?", self.owner, self.holder, secret is Secret.SEED)
        return hashlib.sha256(b"fl-app secagg 1 share" + self.digest + where + share).digest()[:_TAG_BYTES]


@dataclass(frozen=True)
class HeldShares:
    """One holder's shares of one owner's secrets."""

    seed: bytes = field(repr=False)
    masking_key: bytes = field(repr=False)

    def of(self, secret: Secret) -> bytes:
        """Return the share of one of the two secrets."""
        return self.seed if secret is Secret.SEED else self.masking_key


UNOPENED = HeldShares(b"\xff" * SHARE_BYTES, b"\xff" * SHARE_BYTES)
"""Sentinel for shares whose envelope does not open; larger than any valid share."""


def seal_shares(key: bytes, passage: Passage, shares: HeldShares) -> bytes:
    """Return an envelope of `ENVELOPE_BYTES`."""
    tags = passage.tag(Secret.SEED, shares.seed) + passage.tag(Secret.MASKING_KEY, shares.masking_key)
    nonce = os.urandom(_NONCE_BYTES)
    return tags + nonce + AESGCM(key).encrypt(nonce, shares.seed + shares.masking_key, tags)


def open_envelope(key: bytes, passage: Passage, envelope: bytes) -> HeldShares:
    """Return the shares, or refuse the envelope and name its owner."""
    if len(envelope) != ENVELOPE_BYTES:
        raise ProtocolError(
            f"client {passage.holder}: the envelope of client {passage.owner} must have {ENVELOPE_BYTES} "
            f"bytes, got {len(envelope)}"
        )
    tags, rest = envelope[: 2 * _TAG_BYTES], envelope[2 * _TAG_BYTES :]
    try:
        plain = AESGCM(key).decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], tags)
    except InvalidTag:
        raise ProtocolError(
            f"client {passage.holder}: the envelope of client {passage.owner} was altered, or made with "
            "other keys or terms than this client agreed to"
        ) from None
    shares = HeldShares(plain[:SHARE_BYTES], plain[SHARE_BYTES:])
    for secret in Secret:
        check_share(passage, envelope, secret, shares.of(secret), f"client {passage.holder}: the envelope")
    return shares


def check_share(passage: Passage, envelope: bytes, secret: Secret, share: bytes, what: str) -> None:
    """Refuse a share that does not match its tag on the envelope."""
    start = 0 if secret is Secret.SEED else _TAG_BYTES
    if not hmac.compare_digest(passage.tag(secret, share), envelope[start : start + _TAG_BYTES]):
        raise ProtocolError(
            f"{what}: a wrong share of {secret.value} of client {passage.owner} "
            f"(held by client {passage.holder}): its tag does not match"
        )


def commit_to_seed(digest: bytes, client: int, seed: bytes) -> bytes:
    """Return the hash by which the server verifies a reconstructed seed."""
    where = struct.pack("<I", client)
    return hashlib.sha256(b"fl-app secagg 1 seed" + digest + where + seed).digest()
