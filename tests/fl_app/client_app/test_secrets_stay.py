"""Keys, seeds and shares of secure aggregation are in no log, no run's folder, no error and no repr."""

import base64
import logging
import traceback
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client.secure import SecureMember, SecureSettings
from fl_app.client_app import app as real_client_app
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation
from fl_app.secagg import client as secure_client
from fl_app.secagg import create_identities, load_identity
from fl_app.secagg.keys import Agreement
from fl_app.secagg.messages import Unmasking
from fl_app.secagg.stages import Holding, Offered, Shared, write_stage
from fl_app.wire.messages import TRAIN, UNMASK, pack_secure

CLIENTS = 5
TEXT = (
    "defense=fl_std secagg=on model=mlp model.hidden=[8] data.size=8 data.train_per_class=10 "
    f"data.test_per_class=1 clients={CLIENTS} batch_size=4 training.steps=2 rounds=2 threads=1 "
    "attack=first_linear attack.rounds=[1]"
)


class Failing(ClientApp):
    """The real client app; client 4 fails at its vector in round 1, so that its masking key is asked for."""

    failed = False

    def __call__(self, message: Message, context: Context) -> Message:
        last = context.node_config["partition-id"] == CLIENTS - 1
        if last and message.metadata.message_type == TRAIN and not self.failed:
            self.failed = True
            raise RuntimeError(
                f"a client fails and shows what it knows: {SecureMember(None, 4, context.state)!r}"
            )
        return real_client_app(message, context)


@pytest.fixture
def stages(monkeypatch) -> list:
    """All that clients remember, from now on."""
    seen: list = []

    def remember(stage):
        seen.append(stage)
        return write_stage(stage)

    monkeypatch.setattr(secure_client, "write_stage", remember)
    return seen


def secrets_of(stages: list, keys: Path) -> set[bytes]:
    found = set()
    for stage in stages:
        if isinstance(stage, Offered):
            found |= {stage.sealing_key, stage.masking_key, stage.seed}
        if isinstance(stage, Shared):
            found |= {stage.masking_key, stage.seed, *(peer.opener for peer in stage.peers.values())}
        if isinstance(stage, Holding):
            found |= {part for held in stage.shares.values() for part in (held.seed, held.masking_key)}
    pems = [path.read_bytes() for path in keys.glob("*.key")]
    return found | {load_pem_private_key(pem, None).private_bytes_raw() for pem in pems}


def written_forms(secret: bytes) -> list[bytes]:
    """Return a secret as it is, and in the ways in which bytes are shown."""
    # the middle of base64 is the same whatever stands before it, in one of three alignments
    aligned = [base64.b64encode(bytes(shift) + secret)[4:-4] for shift in range(3)]
    inner = repr(secret)[2:-1].encode()
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        inner,
        *aligned,
        *(text.replace(b"+", b"-").replace(b"/", b"_") for text in aligned),
        str(int.from_bytes(secret, "little")).encode(),
        str(int.from_bytes(secret, "big")).encode(),
    ]


def leaked(shown: dict[str, bytes], secrets: set[bytes]) -> list[str]:
    return [
        place for place, text in shown.items() for s in secrets for form in written_forms(s) if form in text
    ]


@pytest.fixture
def keys(tmp_path) -> Path:
    create_identities(tmp_path / "keys", range(CLIENTS))
    return tmp_path / "keys"


def test_a_round_with_identities_leaves_no_secret_behind(tmp_path, keys, stages, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("fl_app").setLevel(logging.DEBUG)
    folder = tmp_path / "run"
    text = f"{TEXT} secagg.identities={keys} run_dir={folder}"
    try:
        run_federation(InlineGrid(Failing(), CLIENTS, run_config={"overrides": text}), text, WHOLE)
    finally:
        logging.getLogger("fl_app").setLevel(logging.NOTSET)
    secrets = secrets_of(stages, keys)
    assert len(secrets) > 2 * CLIENTS * (3 + CLIENTS)
    assert "a client fails" in caplog.text  # the failure is there, and what it shows
    shown = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {Path(path).name for path in shown} >= {"result.json", "run.log", "config.yaml", "report.html"}
    shown["log"] = "\n".join(f"{record.getMessage()} {record.args!r}" for record in caplog.records).encode()
    shown["traces"] = caplog.text.encode()
    assert leaked(shown, secrets) == []


def test_no_repr_shows_a_secret(keys, stages):
    text = f"{TEXT} secagg.identities={keys}"
    grid = InlineGrid(Failing(), CLIENTS, run_config={"overrides": text})
    run_federation(grid, f"{text} run_dir={keys.parent / 'run'}", WHOLE)
    secrets = secrets_of(stages, keys)
    member = SecureMember(SecureSettings(3, keys), 0, grid.context(1000).state)
    masking = next(stage.masking_key for stage in stages if isinstance(stage, Offered))
    things = [*stages, member, load_identity(keys, 0), Agreement(masking), Unmasking(0, (masking,))]
    assert leaked({repr(type(thing)): repr(thing).encode() for thing in things}, secrets) == []


def test_an_error_about_a_secret_does_not_show_it(keys, stages):
    text = f"{TEXT} secagg.identities={keys}"
    grid = InlineGrid(real_client_app, CLIENTS, run_config={"overrides": text})
    run_federation(grid, f"{text} run_dir={keys.parent / 'run'}", WHOLE)
    secrets, shown = secrets_of(stages, keys), {}
    for kind in (UNMASK, "query.share", "query.endorse", "query.offer"):
        for blob in (b"", b"FLSA\x01", *(write_stage(stage) for stage in stages[:3])):
            (reply,) = grid.send_and_receive([Message(pack_secure(blob), 1000, kind)])
            shown[f"{kind} {len(blob)}"] = reply.error.reason.encode()
    key = keys / "client-0.key"
    key.write_bytes(key.read_bytes()[:-40])
    try:
        load_identity(keys, 0)
    except ValueError:
        shown["key file"] = traceback.format_exc().encode()
    assert "key file" in shown
    assert leaked(shown, secrets) == []


def test_the_search_finds_a_secret_however_it_is_written():
    secret = bytes(range(100, 132))
    for text in (b"x" + secret, secret.hex(), f"{secret!r}", base64.b64encode(b"ab" + secret).decode()):
        shown = text if isinstance(text, bytes) else text.encode()
        assert leaked({"log": shown}, {secret})
    assert not leaked({"log": b"nothing"}, {secret})
