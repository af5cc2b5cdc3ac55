"""Signed bundles: Flower's own check of ``--trusted-entities``, on a bundle of this app."""

import base64
import hashlib
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign, sign_message
from flwr.supernode.start_client_internal import _verify_fab

NAME = "fpk_11111111-1111-1111-1111-111111111111"


def ssh_key(key: Ed25519PrivateKey) -> str:
    """Return the public half as it stands in the file of trusted entities."""
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def signed(content: bytes, key: Ed25519PrivateKey, name: str = NAME) -> dict[str, str]:
    """Return what a reviewer's signature is sent as."""
    now = int(time.time())
    signature = sign_message(key, create_message_to_sign(hashlib.sha256(content).digest(), now))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return {name: json.dumps({"signature": text, "signed_at": now}), "valid_license": "true"}


@pytest.fixture
def bundle(repository) -> bytes:
    return build_fab_from_disk(repository)


def test_a_bundle_passes_by_a_listed_signature_of_its_very_bytes_alone(bundle):
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    trusted = {NAME: ssh_key(key)}

    def passes(content: bytes, verifications: dict[str, Any]) -> bool:
        return _verify_fab(Fab(hashlib.sha256(content).hexdigest(), content, verifications), trusted)

    assert passes(bundle, signed(bundle, key))
    assert not passes(bundle + b"\0", signed(bundle, key))
    assert not passes(bundle, signed(bundle, other))
    assert not passes(bundle, signed(bundle, key, name="fpk_of_nobody"))
    assert not passes(bundle, {"valid_license": "true"})
