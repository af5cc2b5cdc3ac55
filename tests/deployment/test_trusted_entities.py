"""Signed bundles: Flower's own check of ``--trusted-entities``, on a bundle and by a SuperNode."""

import base64
import hashlib
import json
import time
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from deployed import needs_flower
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric_ed25519 import create_message_to_sign, sign_message
from flwr.supernode.start_client_internal import _verify_fab
from plain_federation import plain_federation

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


PROJECT = """
[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
"""
APP = """
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def query(message, context):
    Path(context.node_config["mark"]).touch()
    return Message(RecordDict(), reply_to=message)


@server.main()
def main(grid, context):
    nodes = []
    while len(nodes) < 2:
        nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    replies = grid.send_and_receive(asked, timeout=300)
    print("ERRORS", sorted(reply.error.code if reply.has_error() else 0 for reply in replies), "END")
"""


@pytest.mark.slow
@needs_flower
def test_a_node_with_trusted_entities_runs_no_bundle_that_flwr_run_uploads(tmp_path):
    trusted = tmp_path / "trusted.yaml"
    trusted.write_text(yaml.safe_dump({NAME: ssh_key(Ed25519PrivateKey.generate())}))
    with plain_federation(tmp_path, PROJECT, APP) as federation:
        for name, more in (("trusts-all", ()), ("trusts-some", ("--trusted-entities", str(trusted)))):
            federation.add_node(name, "--node-config", f'mark="{tmp_path / name}.mark"', *more)
        federation.wait_for_nodes()
        said = "".join(federation.run().split("\n"))
        assert f"ERRORS [0, {ErrorCode.INVALID_FAB}] END" in said, said[-3000:]
        assert "could not be verified" in federation.log("trusts-some")
    assert (tmp_path / "trusts-all.mark").exists()
    assert not (tmp_path / "trusts-some.mark").exists()
