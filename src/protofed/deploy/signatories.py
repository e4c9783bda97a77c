"""Whose signatures a client believes: those of keys that the federation's authority has admitted.

The server hands the certificates on; it can make none without the authority's passphrase.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from protofed.deploy.owner import Owner
from protofed.deploy.pki import has_ended, read_certificate, read_client_key
from protofed.errors import RefusedError
from protofed.trust.signatures import Signatory

LARGEST = 10_000
"""Characters of a certificate."""


def signatory_of(owner: Owner, certificates: Any = None) -> Signatory:
    """Who signs for a client with its own key, and checks the signatures of others.

    Args:
        owner: what client.yaml says; without a key beside it, as in a simulation, nothing is signed or checked.
        certificates: PEM of each client's admission, by its number, as the server has sent them.

    Returns:
        The client's, which knows the keys of those that were admitted.

    Raises:
        UserError: the key, or the authority's certificate, cannot be used.
        RefusedError: a certificate is not one by which a client is admitted.
    """
    if owner.key is None or not Path(owner.key).exists():
        return Signatory()
    key, authority = read_client_key(Path(owner.key)), read_certificate(Path(owner.key).parent / "ca.crt")
    if not isinstance(certificates, Mapping):
        return Signatory(key, {})
    return Signatory(key, {int(n): _key_of(n, text, authority) for n, text in certificates.items() if n.isdecimal()})


def _key_of(number: str, text: Any, authority: x509.Certificate) -> EllipticCurvePublicKey:
    """The key that was admitted under a number."""
    try:
        found = x509.load_pem_x509_certificate(str(text)[:LARGEST].encode())
        found.verify_directly_issued_by(authority)
        names = [name.value for name in found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        key = found.public_key()
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        raise RefusedError(f"the certificate of client {number} is not of this federation's authority") from None
    if names != [f"client-{number}"] or list(usage) != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise RefusedError(f"the certificate of client {number} is that of another")
    if has_ended(found.not_valid_after_utc):
        raise RefusedError(f"the admission of client {number} has ended")
    if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
        raise RefusedError(f"the key of client {number} is of another kind")
    return key
