"""Pinned identities: clients recognise each other without trusting the server.

A folder holds the public Ed25519 key of every client as ``client-<id>.pub`` and, on the machine of a client,
its private key as ``client-<id>.key`` (both PEM). The folder is distributed once, not through the server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from fl_app.secagg.errors import ProtocolError

Pinned = Mapping[int, Ed25519PublicKey]

_PUBLIC_NAME = re.compile(r"client-(\d+)\.pub")


@dataclass(frozen=True)
class Identity:
    """One client's signing key, and the public keys of all clients that it knows."""

    client: int
    key: Ed25519PrivateKey = field(repr=False)
    pinned: Pinned = field(repr=False)

    def sign(self, statement: bytes) -> bytes:
        """Return the 64 bytes of an Ed25519 signature."""
        return self.key.sign(statement)


def create_identities(folder: Path, clients: Iterable[int]) -> None:
    """Make a key pair for every client; never replace an existing one."""
    folder.mkdir(parents=True, exist_ok=True)
    for client in clients:
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        # O_EXCL: a second call must not invalidate the pinned keys
        place = os.open(_private_file(folder, client), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(place, "wb") as file:
            file.write(private)
        (folder / f"client-{client}.pub").write_bytes(public)


def load_pinned(folder: Path) -> Pinned:
    """Return the public keys of a folder by client."""
    found = {
        int(match[1]): _load_public(path)
        for path in sorted(folder.glob("client-*.pub"))
        if (match := _PUBLIC_NAME.fullmatch(path.name))
    }
    if not found:
        raise ValueError(f"load_pinned: expected files client-<id>.pub in {folder}, found none")
    return found


def load_identity(folder: Path, client: int) -> Identity:
    """Return a client's own identity; its private key must match its pinned public key."""
    pinned = load_pinned(folder)
    path = _private_file(folder, client)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm, InternalError) as error:
        # the error names the file, never its content
        raise ValueError(
            f"load_identity: client {client}: expected its private key in {path}, got {type(error).__name__}"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"load_identity: client {client}: expected an Ed25519 key in {path}")
    if client not in pinned or key.public_key() != pinned[client]:
        raise ValueError(
            f"load_identity: client {client}: {path} does not belong to the pinned client-{client}.pub"
        )
    return Identity(client, key, pinned)


def check_signature(pinned: Pinned, client: int, statement: bytes, signature: bytes, what: str) -> None:
    """Refuse a signature that ``client``'s pinned key did not make of this statement."""
    if client not in pinned:
        raise ProtocolError(f"{what}: client {client} has no pinned identity; pinned: {sorted(pinned)}")
    try:
        pinned[client].verify(signature, statement)
    except InvalidSignature:
        raise ProtocolError(f"{what}: the signature of client {client} does not verify") from None


def _private_file(folder: Path, client: int) -> Path:
    return folder / f"client-{client}.key"


def _load_public(path: Path) -> Ed25519PublicKey:
    try:
        key = load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm, InternalError):
        raise ValueError(f"load_pinned: expected a PEM public key in {path}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"load_pinned: expected an Ed25519 key in {path}, got {type(key).__name__}")
    return key
