"""The folder of a federation of real machines on Flower: its settings, and the parts of server and clients.

DIR/federation.yaml      address, number of clients, deadlines
DIR/server/              stays at the server: its certificate and key, the clients' public keys, messages that wait
DIR/clients/K/           goes to client K: its key, the authority's certificate, client.yaml
DIR/runs/                what came out
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from protofed.deploy.members import MEMBERS, write_members
from protofed.deploy.owner import template
from protofed.deploy.pki import certify, make_authority, make_client_key, write_certificate
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
    clients: int
    host: str = "127.0.0.1"
    port: int = 9092
    minimum: int = Settings.minimum
    deadline: float = Settings.deadline
    wait: float = Settings.wait
    days: int = 365  # that certificates hold

    @classmethod
    def open(cls, folder: Path) -> FederationFolder:
        """One that `deploy init` made."""
        path = folder / "federation.yaml"
        if not path.is_file():
            raise UserError(
                "DIR", str(folder), "it has no federation.yaml", hint="make one with `protofed deploy init`"
            )
        return made(str(path), cls, read_yaml(path), folder=folder.resolve())

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

    def nodes(self) -> dict[int, int]:
        """The nodes of the clients that are registered so far."""
        return read_nodes(self.nodes_file) if self.nodes_file.exists() else {}


def init(federation: FederationFolder) -> str:
    """Make the folder, with all certificates and keys; what is there is never written over.

    Returns:
        The passphrase of the authority's key, which is written nowhere.
    """
    folder = federation.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError("DIR", str(folder), "it is a file, or not empty", hint="name a new folder")
    if federation.clients < 1:
        raise UserError("--clients", federation.clients, "it must be 1 or more")
    if not _is_host(federation.host):
        raise UserError(
            "--host", federation.host, "it must be an address, or a name of at most 64 letters, digits, . and -"
        )
    if not 1 <= federation.port <= 65535:
        raise UserError("--port", federation.port, "it must be from 1 to 65535")
    if not 1 <= federation.minimum <= federation.clients:
        raise UserError("--minimum", federation.minimum, f"it must be from 1 to {federation.clients}")
    if not 0 < federation.deadline < math.inf:
        raise UserError("--deadline", federation.deadline, "it must be a number of seconds above 0")
    if not 0 <= federation.wait < math.inf:
        raise UserError("--wait", federation.wait, "it must be a number of seconds, 0 or more")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("DIR", str(folder), f"it cannot be made: {error.strerror}") from None
    try:
        return _fill(federation)
    except BaseException:  # so that the same command works again
        shutil.rmtree(folder)
        raise


def _fill(federation: FederationFolder) -> str:
    """Write certificates, keys and configuration; the passphrase of the authority's key."""
    federation.server.mkdir(mode=0o700)
    (federation.server / "keys").mkdir()
    passphrase = "-".join(secrets.token_hex(2) for _ in range(8))
    authority = make_authority(federation.server, federation.days, passphrase)
    certify(federation.server, "server", federation.host, authority, federation.days)
    for number in range(federation.clients):
        place = federation.client(number)
        place.mkdir(mode=0o700, parents=True)
        make_client_key(place / "key", federation.server / "keys" / f"{number}.pub")
        write_certificate(place, authority[0])
        write_text(place / "client.yaml", template(number, federation.address))
    members = {n: (federation.server / "keys" / f"{n}.pub").read_text() for n in range(federation.clients)}
    for number in members:  # so that clients can check each other's signatures
        write_members(federation.client(number) / MEMBERS, members)
    says = {k: v for k, v in dataclasses.asdict(federation).items() if k != "folder"}
    write_text(federation.folder / "federation.yaml", yaml.safe_dump(says, sort_keys=False))
    return passphrase


def _is_host(host: str) -> bool:
    """Whether clients can find a server there, and a certificate name it."""
    try:
        ipaddress.ip_address(host)
        return "%" not in host
    except ValueError:
        return len(host) <= 64 and all(re.fullmatch(LABEL, label) for label in host.split("."))
