"""What clients sign with the keys by which they are known: a server that carries it cannot forge it.

Bonawitz et al. (CCS 2017): against a server that does not follow the protocol, clients sign the public keys of a round,
and the set of clients whose sum they help to unmask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from protofed.errors import RefusedError

HALF = 48
"""Bytes of each of the two numbers of a signature on the curve P-384."""
SIGNATURE = 2 * HALF
"""Bytes."""
UNSIGNED = bytes(SIGNATURE)
"""In place of a signature, of a client that has no key."""


@dataclass(frozen=True)
class Signatory:
    """A client that signs, and that knows by their public keys who else may.

    Args:
        key: its own; None where clients have none, as in a simulation.
        members: the public key of each client of the federation, by its number; None where nothing is checked.
    """

    key: EllipticCurvePrivateKey | None = None
    members: Mapping[int, EllipticCurvePublicKey] | None = None

    def sign(self, statement: bytes) -> bytes:
        """Its signature of a statement."""
        if self.key is None:
            return UNSIGNED
        one, other = decode_dss_signature(self.key.sign(statement, ECDSA(SHA384())))
        return one.to_bytes(HALF, "big") + other.to_bytes(HALF, "big")

    def check(self, statements: Mapping[int, bytes], signatures: Mapping[int, bytes]) -> None:
        """Refuse a statement that is not signed by the client whose it is said to be.

        Args:
            statements: by client.
            signatures: likewise.

        Raises:
            RefusedError: a signature is missing or wrong, or a client is no member.
        """
        if self.members is None:
            return
        for number, statement in statements.items():
            if number not in self.members:
                raise RefusedError(f"client {number} is not in its list of members")
            signature = signatures.get(number, UNSIGNED)
            pair = (int.from_bytes(part, "big") for part in (signature[:HALF], signature[HALF:]))
            try:
                self.members[number].verify(encode_dss_signature(*pair), statement, ECDSA(SHA384()))
            except InvalidSignature:
                raise RefusedError(f"what client {number} is said to have signed is not signed by it") from None
