"""Make what a federation needs to trust itself: a certificate authority, a server certificate, keys of nodes.

``python -m fl_app.deploy.certificates FOLDER --names "superlink localhost 127.0.0.1" --nodes 3`` fills

- ``ca/ca.key``: the authority's private key, which signs certificates and is needed for nothing else
  (``--authority`` puts it into another folder, which belongs on no machine of the federation),
- ``trust/ca.crt``: the authority, which everybody must know,
- ``server/server.key``, ``server/server.pem``: the SuperLink's,
- ``operator/operator.key``, ``operator/operator.pem``: for operators, who may start runs and register nodes,
- ``node-0/key`` and ``public/node-0.pub``, …: a key pair for each SuperNode.

Without ``--names`` only key pairs of nodes are made, which takes no authority: no process has to hold both.

These are folders of their own so that each can be mounted where it belongs, and nowhere else. Existing
files are never overwritten. Private keys are readable for their owner alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, SERVER_DAYS = 3650, 730
_PRIVATE, _PUBLIC = 0o600, 0o644


def make_secrets(
    folder: Path, names: Sequence[str], nodes: int, *, authority: Path | None = None
) -> list[Path]:
    """Make the missing files below ``folder`` and return them; ``names`` are the server's addresses.

    The authority's key lies in the folder ``authority``. Without names only nodes get their keys.
    """
    if not names and not nodes:
        raise ValueError("certificates: a server needs at least one name or address, got none")
    made: list[Path] = []
    if names:
        authority_key = (folder / "ca" if authority is None else authority) / "ca.key"
        made = _authority(folder, authority_key)
        made += _server(folder, names, authority_key)
        made += _operator(folder, authority_key)
    for node in range(nodes):
        made += make_key_pair(folder / f"node-{node}" / "key", folder / "public" / f"node-{node}.pub")
    return made


def make_key_pair(private: Path, public: Path) -> list[Path]:
    """Make the missing files of a SuperNode's key pair, and return them."""
    made = []
    if not private.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        # the only format that a SuperNode reads
        text = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        made.append(_write_new(private, text, _PRIVATE))
    if not public.exists():
        half = load_ssh_private_key(private.read_bytes(), None).public_key()
        text = half.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
        made.append(_write_new(public, text, _PUBLIC))
    return made


def _authority(folder: Path, key_file: Path) -> list[Path]:
    certificate_file = folder / "trust" / "ca.crt"
    if certificate_file.exists():
        return []  # its key may be kept elsewhere
    made, key = _key(key_file)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fl-app certificate authority")])
    signs_only = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _begin(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs_only, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return [*made, _write_new(certificate_file, certificate.public_bytes(Encoding.PEM), _PUBLIC)]


def _server(folder: Path, names: Sequence[str], authority_key: Path) -> list[Path]:
    key_file, certificate_file = folder / "server" / "server.key", folder / "server" / "server.pem"
    authority = x509.load_pem_x509_certificate((folder / "trust" / "ca.crt").read_bytes())
    if certificate_file.exists():
        if not key_file.exists():
            raise ValueError(f"certificates: {certificate_file} is there, but its key {key_file} is not")
        _check_server(certificate_file, names, authority)
        return []
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    signing = _signing_key(authority_key)
    made, key = _key(key_file)
    unsigned = _end(_common_name(names[0]), authority, key, ExtendedKeyUsageOID.SERVER_AUTH)
    certificate = unsigned.add_extension(alternatives, critical=False).sign(signing, hashes.SHA256())
    return [*made, _write_new(certificate_file, certificate.public_bytes(Encoding.PEM), _PUBLIC)]


def _operator(folder: Path, authority_key: Path) -> list[Path]:
    """Make what an operator shows to the proxy; it names no server, and a server's certificate is none."""
    key_file, certificate_file = folder / "operator" / "operator.key", folder / "operator" / "operator.pem"
    if certificate_file.exists():
        return []
    authority = x509.load_pem_x509_certificate((folder / "trust" / "ca.crt").read_bytes())
    signing = _signing_key(authority_key)
    made, key = _key(key_file)
    unsigned = _end(_common_name("fl-app operator"), authority, key, ExtendedKeyUsageOID.CLIENT_AUTH)
    certificate = unsigned.sign(signing, hashes.SHA256())
    return [*made, _write_new(certificate_file, certificate.public_bytes(Encoding.PEM), _PUBLIC)]


def _signing_key(file: Path) -> ec.EllipticCurvePrivateKey:
    if not file.exists():
        raise ValueError(f"certificates: to sign a certificate, {file} is needed")
    return _load(file)


def _end(
    subject: x509.Name,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    purpose: x509.ObjectIdentifier,
) -> x509.CertificateBuilder:
    """Begin a certificate that signs no other, for one purpose."""
    issued_by = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _begin(subject, authority.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issued_by), critical=False
        )
    )


def _check_server(file: Path, names: Sequence[str], authority: x509.Certificate) -> None:
    """Refuse a certificate that is there but of no use."""
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    again = f"remove it and its key to have it made again: {file}"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature) as error:
        raise ValueError(f"certificates: the server certificate is not of this authority; {again}") from error
    known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [name for name in names if _general_name(name) not in known]
    if missing:
        raise ValueError(f"certificates: the server certificate does not name {', '.join(missing)}; {again}")
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ValueError(
            f"certificates: the server certificate ended at {certificate.not_valid_after_utc}; {again}"
        )


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key(file: Path) -> tuple[list[Path], ec.EllipticCurvePrivateKey]:
    """Return the key in ``file``, made if it is not there."""
    if file.exists():
        return [], _load(file)
    key = ec.generate_private_key(ec.SECP256R1())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return [_write_new(file, text, _PRIVATE)], key


def _load(file: Path) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(file.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"certificates: {file} must be a key on an elliptic curve, got {type(key).__name__}")
    return key


def _write_new(file: Path, content: bytes, mode: int) -> Path:
    """Write a file that is not there yet, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        os.link(draft, file)  # unlike a renamed one, a link never takes another file's place
    finally:
        draft.unlink()
    return file


def main() -> None:
    """Make the missing files, and list them."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.certificates", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", default="", help="of the SuperLink, with spaces between")
    parser.add_argument("--nodes", type=int, default=0, help="for how many SuperNodes to make a key pair")
    parser.add_argument("--authority", type=Path, help="the folder of the authority's key")
    args = parser.parse_args()
    try:
        made = make_secrets(args.folder, args.names.split(), args.nodes, authority=args.authority)
    except (ValueError, OSError) as error:
        sys.exit(f"{error}")
    for file in made:
        print(f"made {file}")
    if not made:
        print("certificates: all there")


if __name__ == "__main__":
    main()
