"""What a federation trusts: made once, never again, and readable for nobody else."""

import ssl
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fl_app.deploy.certificates import make_key_pair, make_secrets

NAMES = ["superlink", "localhost", "127.0.0.1"]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_made_once(tmp_path):
    made = make_secrets(tmp_path, NAMES, 2)
    before = contents(tmp_path)
    assert {str(name) for name in before} == {
        *("ca/ca.key", "trust/ca.crt", "server/server.key", "server/server.pem"),
        *("operator/operator.key", "operator/operator.pem"),
        *("node-0/key", "public/node-0.pub", "node-1/key", "public/node-1.pub"),
    }
    assert sorted(made) == sorted(tmp_path / name for name in before)
    assert make_secrets(tmp_path, NAMES, 2) == []
    assert contents(tmp_path) == before


def test_what_is_missing_is_made_and_the_rest_stays(tmp_path):
    make_secrets(tmp_path, NAMES, 1)
    before = contents(tmp_path)
    (tmp_path / "public" / "node-0.pub").unlink()
    assert [path.name for path in make_secrets(tmp_path, NAMES[:1], 2)] == ["node-0.pub", "key", "node-1.pub"]
    after = contents(tmp_path)
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2


def test_private_keys_are_for_their_owner_alone(tmp_path):
    make_secrets(tmp_path, NAMES, 1)
    for name in ("ca/ca.key", "server/server.key", "operator/operator.key", "node-0/key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_no_key_is_printed(tmp_path):
    command = [sys.executable, "-m", "fl_app.deploy.certificates", str(tmp_path)]
    done = subprocess.run(
        [*command, "--names", "a 127.0.0.1", "--nodes", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8
    for name in ("ca/ca.key", "server/server.key", "operator/operator.key", "node-0/key"):
        for line in (tmp_path / name).read_text().splitlines():
            assert line not in done.stdout + done.stderr


def test_a_client_of_tls_accepts_the_server_by_each_of_its_names_and_no_other(tmp_path):
    make_secrets(tmp_path, NAMES, 0)
    for name, accepted in ((NAMES[0], True), (NAMES[1], True), (NAMES[2], True), ("elsewhere", False)):
        assert shakes_hands(tmp_path, tmp_path, name) == accepted


def test_a_server_of_another_authority_is_not_accepted(tmp_path):
    for name in ("ours", "theirs"):
        make_secrets(tmp_path / name, NAMES, 0)
    assert not shakes_hands(tmp_path / "ours", tmp_path / "theirs", "localhost")


def shakes_hands(trusted, serving, name) -> bool:
    """Let a strict client and a server talk through memory."""
    client = ssl.create_default_context(cafile=trusted / "trust" / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(serving / "server" / "server.pem", serving / "server" / "server.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        done = 0
        for end in ends:
            try:
                end.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
        if done == 2:
            return True
    raise AssertionError("the two ends go on for ever")


def test_a_node_has_an_openssh_pair_on_the_curve_that_flower_takes(tmp_path):
    make_key_pair(tmp_path / "key", tmp_path / "key.pub")
    private = load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == load_ssh_public_key((tmp_path / "key.pub").read_bytes())


def test_new_names_ask_for_a_new_certificate_in_words(tmp_path):
    make_secrets(tmp_path, NAMES, 0)
    with pytest.raises(ValueError, match=r"does not name federation\.example, 10\.0\.0\.7; remove it"):
        make_secrets(tmp_path, [*NAMES, "federation.example", "10.0.0.7"], 0)
    for name in ("server.pem", "server.key"):
        (tmp_path / "server" / name).unlink()
    make_secrets(tmp_path, [*NAMES, "10.0.0.7"], 0)
    assert shakes_hands(tmp_path, tmp_path, "10.0.0.7")


def test_a_certificate_that_has_ended_is_told(tmp_path, monkeypatch):
    make_secrets(tmp_path, NAMES, 0)

    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(UTC) + timedelta(days=1000)

    monkeypatch.setattr("fl_app.deploy.certificates.datetime", Later)
    with pytest.raises(ValueError, match="ended at"):
        make_secrets(tmp_path, NAMES, 0)


def test_the_authoritys_key_may_be_kept_elsewhere_until_it_is_needed(tmp_path):
    make_secrets(tmp_path, NAMES, 1)
    (tmp_path / "ca" / "ca.key").unlink()
    assert make_secrets(tmp_path, NAMES, 1) == []
    (tmp_path / "server" / "server.pem").unlink()
    with pytest.raises(ValueError, match=r"ca\.key is needed"):
        make_secrets(tmp_path, NAMES, 1)


def test_a_certificate_of_another_authority_is_refused(tmp_path):
    for name in ("ours", "theirs"):
        make_secrets(tmp_path / name, NAMES, 0)
    (tmp_path / "ours" / "trust" / "ca.crt").write_bytes(
        (tmp_path / "theirs" / "trust" / "ca.crt").read_bytes()
    )
    with pytest.raises(ValueError, match="not of this authority"):
        make_secrets(tmp_path / "ours", NAMES, 0)


def test_the_authority_signs_servers_and_no_other_authorities(tmp_path):
    make_secrets(tmp_path, NAMES, 0)
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("trust/ca.crt", "server/server.pem")
    )
    rules = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (rules.ca, rules.path_length) == (True, 0)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
