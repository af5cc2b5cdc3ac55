"""Signed statements: bytes with one meaning in one round, and none elsewhere."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from fl_app.secagg.messages import Advert, Keyring
from fl_app.secagg.reader import pack_clients
from fl_app.secagg.terms import Terms


def advert_statement(terms: Terms, advert: Advert) -> bytes:
    """Return the statement that a client signs about its own keys."""
    keys = struct.pack("<I", advert.client) + advert.sealing_key + advert.masking_key
    return b"fl-app secagg 1 advert" + terms.digest + keys


def survivors_statement(terms: Terms, transcript: bytes, survivors: Sequence[int]) -> bytes:
    """Return the statement that a survivor signs: the list, and the transcript that led to it."""
    return b"fl-app secagg 1 survivors" + terms.digest + transcript + pack_clients(survivors)


def hash_keyring(terms: Terms, keyring: Keyring) -> bytes:
    """Return a hash of the keys that a client was shown."""
    keys = b"".join(advert.sealing_key + advert.masking_key for advert in keyring.adverts)
    shown = pack_clients(keyring.clients) + keys
    return hashlib.sha256(b"fl-app secagg 1 keyring" + terms.digest + shown).digest()


def hash_transcript(keyring_hash: bytes, owners: Sequence[int]) -> bytes:
    """Return a hash of the keys that a client was shown and the owners of the envelopes that it got."""
    return hashlib.sha256(b"fl-app secagg 1 transcript" + keyring_hash + pack_clients(owners)).digest()
