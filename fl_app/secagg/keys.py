"""Key agreement and derivation: every key belongs to one round, one purpose and named clients.

X25519 gives two clients a common secret; HKDF-SHA256 (RFC 5869) turns a secret into keys. The digest of the
round's terms is HKDF's salt: clients that were told different models, participants or rounds
derive different keys and cannot read each other's messages.
"""

from __future__ import annotations

import enum
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fl_app.secagg.errors import ProtocolError

KEY_BYTES = 32


class Purpose(enum.Enum):
    """Purpose of a derived key; the value separates it from all others."""

    ENVELOPE = b"fl-app secagg 1 envelope"
    """Encrypts the shares that one owner gives to one holder: (owner, holder)."""
    PAIR_MASK = b"fl-app secagg 1 pair mask"
    """Expands to the mask that one client adds and the other subtracts: (lower, higher)."""
    SELF_MASK = b"fl-app secagg 1 self mask"
    """Self-mask of one client: (client)."""


class Agreement:
    """One X25519 key pair; shows its public half only."""

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        """Show the public key."""
        return f"Agreement(public={self.public.hex()})"

    def agree(self, client: int, public: bytes) -> bytes:
        """Return the secret shared with ``client``, whose public key is ``public``."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            # a point of small order: the common secret would be zero, whatever our key is
            raise ProtocolError(f"client {client}: expected an X25519 key, got {public.hex()}") from None


# any private key detects a point of small order, so this one need not be secret
_ANYONE = Agreement(bytes(KEY_BYTES))


def make_private_key() -> bytes:
    """Return a new X25519 private key, from the operating system's generator."""
    return X25519PrivateKey.generate().private_bytes_raw()


def check_public_key(client: int, public: bytes) -> None:
    """Refuse a key that allows no key agreement."""
    _ANYONE.agree(client, public)


def derive_key(secret: bytes, purpose: Purpose, digest: bytes, *clients: int) -> bytes:
    """Return 32 bytes: HKDF-SHA256 with the terms' digest as salt, purpose and clients as info.

    It uses `hmac`: the class in `cryptography` makes three objects per key, for 10,000 keys.
    """
    info = purpose.value + struct.pack(f"<{len(clients)}I", *clients)
    return hmac.digest(hmac.digest(digest, secret, "sha256"), info + b"\x01", "sha256")


def pair_mask_key(own: Agreement, public: bytes, digest: bytes, client: int, other: int) -> bytes:
    """Return the key of the mask that the lower of two clients adds and the higher one subtracts."""
    lower, higher = sorted((client, other))
    return derive_key(own.agree(other, public), Purpose.PAIR_MASK, digest, lower, higher)
