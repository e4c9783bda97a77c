"""The folder of a federation of real machines on Flower: its settings, and the parts of server and clients.

DIR/federation.yaml      address, deadlines
DIR/server/              stays at the server: its certificate and key, members.json, messages that wait
DIR/clients/K/           goes to client K: its certificate, the authority's, client.yaml; its key if `init` made it
DIR/runs/                what came out
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

from protofed.deploy.events import member_changed
from protofed.deploy.members import Admission, KeyMadeAt, MembersFile, admit, present
from protofed.deploy.owner import template
from protofed.deploy.pki import (
    AUTHORITY_DAYS,
    Authority,
    certify,
    fingerprint,
    make_authority,
    make_client_key,
    read_request,
    write_certificate,
    write_public,
)
from protofed.deploy.server_settings import Settings, read_nodes
from protofed.errors import UserError
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import made
from protofed.internal.yaml_files import read_yaml

LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
"""A part of the name of a machine."""


@dataclass(frozen=True)
class FederationFolder:
    """What federation.yaml says."""

    folder: Path
    host: str = "127.0.0.1"
    port: int = 9092
    minimum: int = Settings.minimum
    deadline: float = Settings.deadline
    wait: float = Settings.wait
    days: int = 365  # that the server's certificate and admissions hold

    @classmethod
    def open(cls, folder: Path) -> FederationFolder:
        """One that `deploy init` made."""
        path = folder / "federation.yaml"
        if not path.is_file():
            raise UserError(
                "DIR", str(folder), "it has no federation.yaml", hint="make one with `protofed deploy init`"
            )
        found = made(str(path), cls, read_yaml(path), folder=folder.resolve())
        if not found.members_file.path.is_file():
            raise UserError("DIR", str(folder), "it has no server/members.json", hint="an earlier version made it")
        return found

    @property
    def address(self) -> str:
        """Where clients find the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def server(self) -> Path:
        """The server's part."""
        return self.folder / "server"

    @property
    def log(self) -> Path:
        """What the server says; it is locked while the server runs."""
        return self.server / "server.log"

    @property
    def database(self) -> Path:
        """Where messages wait for clients, and answers for runs."""
        return self.server / "state.db"

    @property
    def nodes_file(self) -> Path:
        """The node of each client, which is known from its key."""
        return self.server / "nodes.json"

    def client(self, number: int) -> Path:
        """A client's part."""
        return self.folder / "clients" / str(number)

    @property
    def members_file(self) -> MembersFile:
        """Who was admitted."""
        return MembersFile(self.server / "members.json")

    def members(self) -> dict[int, Admission]:
        """The clients of the federation as it is."""
        return present(self.members_file.read())

    def nodes(self) -> dict[int, int]:
        """The nodes of the clients that are registered so far."""
        return read_nodes(self.nodes_file) if self.nodes_file.exists() else {}


def init(federation: FederationFolder, clients: int, requests: Sequence[Path] = ()) -> str:
    """Make the folder, with all certificates, and the keys of some clients; what is there is never written over.

    Args:
        federation: where, and its settings.
        clients: how many clients' keys are made here.
        requests: of clients that have made their own, which are admitted after those.

    Returns:
        The passphrase of the authority's key, which is written nowhere.
    """
    folder = federation.folder
    asked = [read_request(request) for request in requests]
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError("DIR", str(folder), "it is a file, or not empty", hint="name a new folder")
    if clients < 0:
        raise UserError("--clients", clients, "it must be 0 or more")
    if not _is_host(federation.host):
        raise UserError(
            "--host", federation.host, "it must be an address, or a name of at most 64 letters, digits, . and -"
        )
    if not 1 <= federation.port <= 65535:
        raise UserError("--port", federation.port, "it must be from 1 to 65535")
    known = clients + len(asked)
    if federation.minimum < 1 or 0 < known < federation.minimum:
        raise UserError("--minimum", federation.minimum, f"it must be from 1 to {known}" if known else "at least 1")
    if not 0 < federation.deadline < math.inf:
        raise UserError("--deadline", federation.deadline, "it must be a number of seconds above 0")
    if not 0 <= federation.wait < math.inf:
        raise UserError("--wait", federation.wait, "it must be a number of seconds, 0 or more")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("DIR", str(folder), f"it cannot be made: {error.strerror}") from None
    try:
        return _fill(federation, clients, asked)
    except BaseException:  # so that the same command works again
        shutil.rmtree(folder)
        raise


def _fill(federation: FederationFolder, clients: int, asked: Sequence[tuple[EllipticCurvePublicKey, str]]) -> str:
    """Write certificates, keys and configuration; the passphrase of the authority's key."""
    federation.server.mkdir(mode=0o700)
    passphrase = "-".join(secrets.token_hex(2) for _ in range(8))
    authority = make_authority(federation.server, AUTHORITY_DAYS, passphrase)
    certify(federation.server, "server", federation.host, authority, federation.days)
    with federation.members_file.changing() as members:
        for number in range(clients):
            place = federation.client(number)
            place.mkdir(mode=0o700, parents=True)
            key = make_client_key(place / "key").public_key()
            _admit(federation, members, f"client {number}", key, "server", authority)
        for key, name in asked:
            _admit(federation, members, name, key, "client", authority)
    says = {k: v for k, v in dataclasses.asdict(federation).items() if k != "folder"}
    write_text(federation.folder / "federation.yaml", yaml.safe_dump(says, sort_keys=False))
    return passphrase


def _admit(
    federation: FederationFolder,
    members: dict[int, Admission],
    name: str,
    key: EllipticCurvePublicKey,
    made_at: KeyMadeAt,
    authority: Authority,
) -> None:
    number = admit(members, None, name, key, made_at, authority, federation.days)
    write_bundle(federation, number, members[number], authority[0])
    member_changed(federation.server, number, "admitted", name=name, key=fingerprint(key))


def write_bundle(federation: FederationFolder, number: int, member: Admission, authority: x509.Certificate) -> None:
    """What a client needs beside its key, none of it secret; a client.yaml that is there stays as it is."""
    place = federation.client(number)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_certificate(place, authority)
    write_public(place / "client.crt", member.certificate.encode())
    if not (place / "client.yaml").exists():
        write_text(place / "client.yaml", template(number, federation.address))


def _is_host(host: str) -> bool:
    """Whether clients can find a server there, and a certificate name it."""
    try:
        ipaddress.ip_address(host)
        return "%" not in host
    except ValueError:
        return len(host) <= 64 and all(re.fullmatch(LABEL, label) for label in host.split("."))
