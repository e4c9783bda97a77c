"""The keys and certificates of a federation: an authority of its own, and what it signs."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import ipaddress
from collections.abc import Callable
from pathlib import Path

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
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protofed.errors import UserError
from protofed.internal.atomic_files import write_file

Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_authority(folder: Path, days: int, passphrase: str) -> Authority:
    """A certificate authority, as ca.crt and ca.key in a folder; the key is encrypted with the passphrase."""
    key = ec.generate_private_key(ec.SECP384R1())
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
    builder = _certificate(name, name, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(usage, critical=True).add_extension(identity, critical=False)
    certificate = builder.sign(key, hashes.SHA384())
    write_certificate(folder, certificate)
    write_secret(folder / "ca.key", _pem(key, BestAvailableEncryption(passphrase.encode())))
    return certificate, key


def write_certificate(folder: Path, authority: x509.Certificate) -> None:
    """The authority's certificate, by which others know whom it has certified."""
    write_new(folder / "ca.crt", authority.public_bytes(Encoding.PEM))


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
    builder = _certificate(subject, certificate.subject, key, days)
    for extension, critical in (
        (x509.SubjectAlternativeName(dict.fromkeys(names)), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ):
        builder = builder.add_extension(extension, critical)
    write_new(folder / f"{name}.pem", builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    write_secret(folder / f"{name}.key", _pem(key))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def make_client_key(private: Path, public: Path) -> None:
    """The key by which a client is known to the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_new(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def check_keys(place: Path) -> None:
    """Refuse a client without its keys and certificates: Flower would try for minutes, and not say why."""
    readers: dict[str, Callable[[bytes], object]] = {
        "ca.crt": x509.load_pem_x509_certificate,
        "key": lambda data: load_ssh_private_key(data, None),
    }
    for name, read in readers.items():
        try:
            read((place / name).read_bytes())
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
            raise UserError("DIR", str(place / name), "it is not the file that `protofed deploy init` made") from None


def expiry(path: Path) -> datetime.datetime:
    """Until when a certificate is valid."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError):
        raise UserError("DIR", str(path), "it is not the file that `protofed deploy init` made") from None


def fingerprint(public: Path) -> str:
    """Of a public key in a file, as `ssh-keygen -l` says it."""
    data = base64.b64decode(public.read_bytes().split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def write_secret(path: Path, data: bytes) -> None:
    """A new file that its owner alone may read."""
    write_file(path, lambda draft: draft.write_bytes(data), alone=True, mode=0o600)


def write_new(path: Path, data: bytes) -> None:
    """A new file that others may read."""
    write_file(path, lambda draft: draft.write_bytes(data), alone=True, mode=0o644)


def _pem(key: ec.EllipticCurvePrivateKey, how: KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how or NoEncryption())
