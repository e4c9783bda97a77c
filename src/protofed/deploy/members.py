"""The members of a federation by their public keys: members.json beside client.yaml, number → key as OpenSSH writes it.

Whoever gives a client this list is trusted with it: the operator, when a client is admitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from protofed.deploy.owner import Owner
from protofed.deploy.server_settings import WHOLE
from protofed.errors import UserError
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import read_json
from protofed.trust.signatures import Signatory

MEMBERS = "members.json"


def write_members(path: Path, keys: Mapping[int, str]) -> None:
    """Write the list that clients get.

    Args:
        path: the file.
        keys: each client's public key, as OpenSSH writes it.
    """
    write_text(path, json.dumps({str(number): key.strip() for number, key in sorted(keys.items())}, indent=1) + "\n")


def read_members(path: Path) -> dict[int, EllipticCurvePublicKey]:
    """The public key of each member.

    Raises:
        UserError: the file is no such list.
    """
    said = read_json(path)
    if not (isinstance(said, dict) and all(WHOLE.fullmatch(number) for number in said)):
        raise UserError("members", str(path), "it must give the public key of each client, by its number")
    found = {}
    for number, text in said.items():
        try:
            key = load_ssh_public_key(text.encode()) if isinstance(text, str) else None
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not (isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP384R1)):
            raise UserError("members", str(path), f"the public key of client {number} is none")
        found[int(number)] = key
    if len(found) < len(said):
        raise UserError("members", str(path), "it names a client twice")
    return found


def signatory_of(owner: Owner) -> Signatory:
    """Who signs for a client with its own key, and checks others by its list of members; without them, for nothing.

    Raises:
        UserError: a file cannot be used.
    """
    members = None if owner.members is None else read_members(Path(owner.members))
    if owner.key is None or not Path(owner.key).exists():
        return Signatory(None, members)
    try:
        key: object = load_ssh_private_key(Path(owner.key).read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError("DIR", owner.key, "it is no key of a client")
    return Signatory(key, members)
