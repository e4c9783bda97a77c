"""The keys and certificates of a federation: an authority of its own, and what it signs."""

from __future__ import annotations

import binascii
import contextlib
import datetime
import hashlib
import ipaddress
from base64 import b64encode
from pathlib import Path
from typing import cast

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protofed.errors import UserError, misused
from protofed.internal.atomic_files import write_file

Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]

AUTHORITY_DAYS = 3650
"""For how long clients need no other certificate of their federation's authority."""
SOON = datetime.timedelta(days=30)
"""From when on it is said that a certificate ends."""
CLOCKS_DIFFER = datetime.timedelta(days=1)
"""What is signed holds from before now on: a machine whose clock is behind must not take it for one of the future."""
LARGEST_REQUEST = 20_000
"""Bytes."""
LONGEST_NAME = 64
"""Characters of a client's name, which certificates bound."""


def make_authority(folder: Path, days: int, passphrase: str) -> Authority:
    """A certificate authority, as ca.crt and ca.key in a folder; the key is encrypted with the passphrase."""
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = certify_authority(folder, key, days)
    write_secret(folder / "ca.key", _pem(key, BestAvailableEncryption(passphrase.encode())))
    return certificate, key


def certify_authority(folder: Path, key: ec.EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """The authority's certificate, as ca.crt in a folder; what it has signed is good under any that has its key."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ProtoFed federation")])
    usage = x509.KeyUsage(
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
    builder = _certificate(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(usage, critical=True).add_extension(identity, critical=False)
    certificate = builder.sign(key, hashes.SHA384())
    write_certificate(folder, certificate)
    return certificate


def open_authority(folder: Path, passphrase: str) -> Authority:
    """The authority whose ca.crt and ca.key are in a folder.

    Raises:
        UserError: the passphrase is not that of its key, or a file is damaged.
    """
    certificate, path = read_certificate(folder / "ca.crt"), folder / "ca.key"
    try:
        key = load_pem_private_key(path.read_bytes(), passphrase.encode())
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise misused("the passphrase", f"it does not open {path}") from None
    return certificate, cast(ec.EllipticCurvePrivateKey, key)


def write_certificate(folder: Path, authority: x509.Certificate) -> None:
    """The authority's certificate, by which others know whom it has certified."""
    write_public(folder / "ca.crt", authority.public_bytes(Encoding.PEM))


def certify(folder: Path, name: str, host: str, authority: Authority, days: int) -> None:
    """A certificate for a host, and for this machine's own name, as NAME.pem and NAME.key."""
    certificate, signer = authority
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    with contextlib.suppress(ValueError):
        names.append(x509.IPAddress(ipaddress.ip_address(host)))
    if len(names) == 2:
        names.append(x509.DNSName(host))
    builder = _certificate(subject, certificate.subject, key.public_key(), days)
    for extension, critical in (
        (x509.SubjectAlternativeName(dict.fromkeys(names)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    write_public(folder / f"{name}.pem", builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    write_secret(folder / f"{name}.key", _pem(key))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def make_client_key(private: Path) -> ec.EllipticCurvePrivateKey:
    """The key by which a client is known to the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key


def read_client_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A client's private key.

    Raises:
        UserError: there is none in the file.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError("DIR", str(path), "it is no key that `protofed deploy join` or `deploy init` made")
    return key


def write_request(path: Path, key: ec.EllipticCurvePrivateKey, name: str) -> None:
    """Ask to be admitted: the public key and a name, signed with the key, which itself stays where it is."""
    if not is_name(name):
        raise UserError("--name", name, f"it must be of 1 to {LONGEST_NAME} printable characters")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA384())
    write_public(path, request.public_bytes(Encoding.PEM))


def read_request(path: Path) -> tuple[ec.EllipticCurvePublicKey, str]:
    """The key and the name of who asks to be admitted.

    Raises:
        UserError: it is no request, or not of who has the key.
    """
    try:
        data = path.read_bytes()
        request = x509.load_pem_x509_csr(data[:LARGEST_REQUEST])
        key, named = request.public_key(), request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        right = len(data) <= LARGEST_REQUEST and request.is_signature_valid
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError("REQUEST", str(path), "it is not the file that `protofed deploy join` made") from None
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1) and right):
        raise UserError("REQUEST", str(path), "its key is of another kind, or did not sign it")
    name = named[0].value if len(named) == 1 else None
    if not (isinstance(name, str) and is_name(name)):
        raise UserError("REQUEST", str(path), "it has no name that can be shown")
    return key, name


def is_name(name: str) -> bool:
    """Whether a client can be called so."""
    return 1 <= len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip()


def certify_client(
    number: int, name: str, key: ec.EllipticCurvePublicKey, authority: Authority, days: int
) -> x509.Certificate:
    """The authority's word that a key is that of a client of the federation, until then."""
    certificate, signer = authority
    names = [
        x509.NameAttribute(NameOID.COMMON_NAME, f"client-{number}"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, name),
    ]
    builder = _certificate(x509.Name(names), certificate.subject, key, days)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), True),  # or a client could pass for the server
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384())


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as the server's listener knows it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """What two people read to each other to know that they speak of one key; as `ssh-keygen -l` says it."""
    text = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1]
    digest = hashlib.sha256(binascii.a2b_base64(text)).digest()
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file.

    Raises:
        UserError: there is none.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise UserError("DIR", str(path), "it is no certificate that `protofed deploy` made") from None


def expiry(path: Path) -> datetime.datetime:
    """Until when a certificate is valid."""
    return read_certificate(path).not_valid_after_utc


def has_ended(ends: datetime.datetime) -> bool:
    """Whether it is over now."""
    return ends <= datetime.datetime.now(datetime.UTC)


def note(what: str, ends: datetime.datetime, mend: str) -> list[str]:
    """A line about what ends soon, or has ended, and what mends it; none about what holds for long."""
    left = ends - datetime.datetime.now(datetime.UTC)
    if left > SOON:
        return []
    when = f"ends on {ends.date()}, in {left.days} days" if left.total_seconds() > 0 else f"ended on {ends.date()}"
    return [f"{what} {when}: {mend}"]


def write_secret(path: Path, data: bytes) -> None:
    """A file that its owner alone may read."""
    write_file(path, lambda draft: draft.write_bytes(data), alone=True, mode=0o600)


def write_public(path: Path, data: bytes) -> None:
    """A file that others may read."""
    write_file(path, lambda draft: draft.write_bytes(data), alone=True, mode=0o644)


def _pem(key: ec.EllipticCurvePrivateKey, how: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())
