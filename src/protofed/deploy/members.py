"""members.json in the server's folder: who has been admitted to a federation, and who was removed."""

from __future__ import annotations

import datetime
import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from protofed.deploy.pki import CLOCKS_DIFFER, Authority, certify_client, fingerprint, has_ended, public_pem
from protofed.errors import UserError
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import made, read_json

KeyMadeAt = Literal["client", "server"]
UNKNOWN = "its key is not registered"
"""What a server says to who has a key that it does not know."""
REMOVED = "it was removed from the federation"
"""What a server says to a client that it answers no longer."""


@dataclass(frozen=True)
class Admission:
    """A client that was admitted: the certificate of its key, and what became of it."""

    certificate: str  # PEM
    key_made_at: KeyMadeAt  # a key that was made at the server was known there
    removed: str | None = None  # when
    before: Sequence[str] = ()  # fingerprints of the keys that this number had, which are admitted no more

    @property
    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate.encode())

    @property
    def key(self) -> EllipticCurvePublicKey:
        """By which the server knows it."""
        return cast(EllipticCurvePublicKey, self._certificate.public_key())

    @property
    def name(self) -> str:
        """What it is called."""
        (found,) = self._certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        return str(found.value)

    @property
    def since(self) -> datetime.datetime:
        """When it was admitted, or its admission last renewed."""
        return self._certificate.not_valid_before_utc + CLOCKS_DIFFER

    @property
    def until(self) -> datetime.datetime:
        """When its admission ends."""
        return self._certificate.not_valid_after_utc

    @property
    def objection(self) -> str | None:
        """Why the server does not answer it, if so."""
        return why_not(self.removed, self.until)


def why_not(removed: str | None, until: datetime.datetime) -> str | None:
    """Why a client is not answered that was removed, or admitted until some time, if so."""
    if removed is not None:
        return REMOVED
    return f"its admission ended on {until.date()}: whoever runs the server renews it" if has_ended(until) else None


class MembersFile:
    """Who has been admitted, by number; a number is never given to another client unless somebody says so."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[int, Admission]:
        """All that were ever admitted.

        Raises:
            UserError: the file cannot be read.
        """
        said = read_json(self.path)
        if not (isinstance(said, dict) and all(number.isascii() and number.isdecimal() for number in said)):
            raise UserError("FILE", str(self.path), "it must say who was admitted")
        found = {
            int(number): made(f"client {number} in {self.path}", Admission, value) for number, value in said.items()
        }
        for number, member in found.items():
            try:
                _ = member.name, member.key, member.until
            except ValueError:
                raise UserError("FILE", str(self.path), f"the certificate of client {number} is none") from None
        return dict(sorted(found.items()))

    def write(self, members: Mapping[int, Admission]) -> None:
        """Replace it, whole or not at all."""
        said = {str(number): asdict(member) for number, member in sorted(members.items())}
        write_text(self.path, json.dumps(said, indent=1) + "\n")

    @contextmanager
    def changing(self) -> Iterator[dict[int, Admission]]:
        """All that were admitted, to be changed by nobody else meanwhile, and written at the end."""
        with self.path.with_name("members.lock").open("ab") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX)
            members = self.read() if self.path.exists() else {}
            yield members
            self.write(members)


def present(members: Mapping[int, Admission]) -> dict[int, Admission]:
    """Those that were not removed."""
    return {number: member for number, member in members.items() if member.removed is None}


def admit(
    members: dict[int, Admission],
    number: int | None,
    name: str,
    key: EllipticCurvePublicKey,
    key_made_at: KeyMadeAt,
    authority: Authority,
    days: int,
) -> int:
    """Add a client under its number, or under the next one that nobody has had; the number.

    Raises:
        UserError: the number is taken, or would leave a gap; or the key is that of another one.
    """
    fresh = max(members, default=-1) + 1
    number = fresh if number is None else number
    if number in present(members):
        raise UserError("--id", number, f"{members[number].name} is client {number}", hint="the next one is free")
    if not 0 <= number <= fresh:
        raise UserError("--id", number, f"the next new one is {fresh}")
    _check_new(members, key)
    certificate = certify_client(number, name, key, authority, days)
    members[number] = Admission(_pem(certificate), key_made_at, before=_keys(members.get(number)))
    return number


def renew(
    members: dict[int, Admission],
    number: int,
    asked: tuple[EllipticCurvePublicKey, str] | None,
    authority: Authority,
    days: int,
) -> None:
    """Let an admission hold from now on; with another key and name, if the client asks for that.

    Raises:
        UserError: there is no such client, or the key is that of another one.
    """
    old = member_of(members, number)
    if asked is None or same_key(asked[0], old.key):
        certificate = certify_client(number, asked[1] if asked else old.name, old.key, authority, days)
        members[number] = replace(old, certificate=_pem(certificate))
    else:
        _check_new(members, asked[0])
        certificate = certify_client(number, asked[1], asked[0], authority, days)
        members[number] = Admission(_pem(certificate), "client", before=_keys(old))


def remove(members: dict[int, Admission], number: int) -> None:
    """Answer it no longer."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    members[number] = replace(member_of(members, number), removed=now)


def member_of(members: Mapping[int, Admission], number: int) -> Admission:
    """A client that was not removed.

    Raises:
        UserError: there is none.
    """
    if number not in members:
        raise UserError("--id", number, "there is no such client", hint="`protofed deploy members` lists them")
    if members[number].removed is not None:
        raise UserError("--id", number, f"it was removed on {members[number].removed}")
    return members[number]


def same_key(one: EllipticCurvePublicKey, other: EllipticCurvePublicKey) -> bool:
    """Whether two keys are one."""
    return public_pem(one) == public_pem(other)


def _check_new(members: Mapping[int, Admission], key: EllipticCurvePublicKey) -> None:
    """Refuse the key of somebody else: who has it speaks for both; one that was removed may be in wrong hands."""
    for number, member in members.items():
        if fingerprint(key) in _keys(member):
            gone = member.removed is not None or not same_key(member.key, key)
            why = f"its key is that of client {number}" + (", and holds no more" if gone else "")
            hint = "let the client make another: `protofed deploy join PLACE --renew`"
            raise UserError("REQUEST", fingerprint(key), why, hint=hint)


def _keys(member: Admission | None) -> Sequence[str]:
    """All that a number has had, if anybody had it."""
    return () if member is None else (*member.before, fingerprint(member.key))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


class Roster:
    """members.json as a running server looks at it: who may be answered, by key; read again when it has changed."""

    def __init__(self, file: MembersFile) -> None:
        self.file = file
        self._seen: tuple[int, int] | None = None
        self._members: dict[bytes, tuple[str | None, datetime.datetime]] = {}

    def objection(self, key: bytes) -> str | None:
        """Why the owner of a public key is not answered, if so."""
        about = self.file.path.stat()
        if self._seen != (about.st_mtime_ns, about.st_ino):  # it is replaced, not written over
            members = self.file.read().values()
            self._members = {public_pem(member.key): (member.removed, member.until) for member in members}
            self._seen = about.st_mtime_ns, about.st_ino
        return why_not(*self._members[key]) if key in self._members else UNKNOWN
