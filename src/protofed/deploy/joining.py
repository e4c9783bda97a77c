"""A client's own keys, where it is: made there, never sent, and what the federation has certified of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.x509.oid import NameOID

from protofed.deploy.members import same_key
from protofed.deploy.pki import (
    expiry,
    fingerprint,
    has_ended,
    make_client_key,
    note,
    read_certificate,
    read_client_key,
    write_request,
)
from protofed.errors import UserError

REQUEST = "request.csr"
"""What a client sends to whoever runs the server: its public key and its name."""
NEXT = "key.next"
"""A key that is not admitted yet, beside the one that is."""


def join(place: Path, name: str, renew: bool) -> str:
    """Make a client's key, and a request to be admitted with it; the key's fingerprint.

    Args:
        place: the client's folder, which is made if it is not there.
        name: of the client, for people.
        renew: make another key; the one that is there holds until the new one is admitted.

    Raises:
        UserError: there is a key already, or none that could be renewed.
    """
    key, there = place / (NEXT if renew else "key"), (place / "key").exists()
    if renew and not there:
        raise UserError("PLACE", str(place), "it has no key that could be renewed")
    if there and not renew and (place / "client.crt").exists():
        raise UserError("PLACE", str(place), "it has a key that is admitted", hint="--renew makes another")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("PLACE", str(place), f"it cannot be made: {error.strerror}") from None
    private = read_client_key(key) if key.exists() else make_client_key(key)
    write_request(place / REQUEST, private, name)
    return fingerprint(private.public_key())


def check_keys(place: Path, number: int) -> None:
    """Refuse a client without its keys and certificates: Flower would try for minutes, and not say why."""
    read_certificate(place / "ca.crt")
    path = place / "client.crt"
    certificate = read_certificate(path)
    key = certificate.public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        raise UserError("DIR", str(path), "it is of another kind of key")
    if (place / NEXT).exists() and same_key(read_client_key(place / NEXT).public_key(), key):
        (place / NEXT).replace(place / "key")
    if not same_key(read_client_key(place / "key").public_key(), key):
        raise UserError("DIR", str(path), f"it is not of {place / 'key'}")
    if _client(certificate) != f"client-{number}":
        raise UserError("DIR", str(path), f"it is of {_client(certificate)}, not of client {number}")
    if has_ended(ends := certificate.not_valid_after_utc):
        raise UserError("DIR", str(path), f"the admission ended on {ends.date()}: {_mend(number)}")


def notes(place: Path, number: int) -> Sequence[str]:
    """What of a client's certificates ends within a month."""
    found = note("this client's admission", expiry(place / "client.crt"), _mend(number))
    mend = "ask whoever runs the server for its new ca.crt (`protofed deploy renew DIR`)"
    return [*found, *note("the authority's certificate", expiry(place / "ca.crt"), mend)]


def _client(certificate: x509.Certificate) -> str:
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def _mend(number: int) -> str:
    return f"whoever runs the server renews it with `protofed deploy renew DIR --id {number}`"
