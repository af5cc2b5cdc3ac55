import shutil
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fl_app.secagg import ProtocolError, create_identities, load_identity, load_pinned
from fl_app.secagg.identities import check_signature


@pytest.fixture
def folder(tmp_path):
    create_identities(tmp_path, [1, 2, 30])
    return tmp_path


def test_a_signature_is_known_by_the_pinned_key(folder):
    signature = load_identity(folder, 2).sign(b"said")
    check_signature(load_pinned(folder), 2, b"said", signature, "test")
    for client, statement in ((1, b"said"), (2, b"not said")):
        with pytest.raises(ProtocolError, match=f"test: the signature of client {client} does not verify"):
            check_signature(load_pinned(folder), client, statement, signature, "test")
    with pytest.raises(ProtocolError, match=r"client 7 has no pinned identity; pinned: \[1, 2, 30\]"):
        check_signature(load_pinned(folder), 7, b"said", signature, "test")


def test_only_the_owner_reads_a_private_key(folder):
    assert stat.S_IMODE((folder / "client-30.key").stat().st_mode) == 0o600


def test_an_identity_is_never_replaced(folder):
    before = (folder / "client-1.pub").read_bytes()
    with pytest.raises(FileExistsError):
        create_identities(folder, [1])
    assert (folder / "client-1.pub").read_bytes() == before


def test_a_server_needs_no_private_key(folder):
    for path in folder.glob("*.key"):
        path.unlink()
    assert sorted(load_pinned(folder)) == [1, 2, 30]
    with pytest.raises(ValueError, match=r"client 2: expected its private key in .*client-2\.key"):
        load_identity(folder, 2)


def test_a_private_key_of_someone_else_is_refused(folder):
    shutil.copy(folder / "client-1.key", folder / "client-2.key")
    with pytest.raises(ValueError, match=r"client-2\.key does not belong to the pinned client-2\.pub"):
        load_identity(folder, 2)


def test_files_that_are_no_keys_are_refused_by_name(folder, tmp_path):
    with pytest.raises(ValueError, match=r"expected files client-<id>\.pub in .*, found none"):
        load_pinned(tmp_path / "nothing")
    other = X25519PrivateKey.generate().public_key()
    (folder / "client-1.pub").write_bytes(other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ValueError, match=r"expected an Ed25519 key in .*client-1\.pub"):
        load_pinned(folder)
    (folder / "client-1.pub").write_text("hello")
    with pytest.raises(ValueError, match=r"expected a PEM public key in .*client-1\.pub"):
        load_pinned(folder)
    (folder / "client-2.key").write_text("secret words")
    (folder / "client-1.pub").unlink()
    with pytest.raises(ValueError, match=r"client-2\.key") as refused:
        load_identity(folder, 2)
    assert "secret words" not in str(refused.value)


def test_no_repr_shows_a_private_key(folder):
    assert repr(load_identity(folder, 2)) == "Identity(client=2)"


@pytest.mark.parametrize(
    ("name", "pem"),
    [
        # of an unknown kind, and of another curve with a key that is too short for it: found by fuzzing
        ("client-0.pub", "PUBLIC KEY-----\nMCowBQYDKJVwAyEADu9m1CHcfQTY0Kw4e36uZwrE3dO4NscTUpkljuXjW2Y=\n"),
        (
            "client-0.key",
            "PRIVATE KEY-----\nMC4CAQAwBQYDK2VvBCIEIN3V0YP98vRuKL6uq10oNKifzwhzepqfqfAip5sqFj2U\n",
        ),
    ],
)
def test_a_key_file_of_another_kind_is_refused_by_its_name(tmp_path, name, pem):
    create_identities(tmp_path, [0])
    (tmp_path / name).write_text(f"-----BEGIN {pem}-----END {pem.partition('-')[0]}-----\n")
    with pytest.raises(ValueError, match=name):
        load_identity(tmp_path, 0)
