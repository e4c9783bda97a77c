"""A federation of real machines on Flower: who it consists of, its keys and certificates, and its processes.

DIR/federation.yaml      address, number of clients, deadlines
DIR/server/              stays at the server: certificate authority, its certificate, the clients' public keys
DIR/clients/K/           goes to client K: its key, the authority's certificate, client.yaml
DIR/runs/                what came out
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ipaddress
import json
import math
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
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

from protofed.deploy import follow_run as follow
from protofed.deploy.flower_app import write_app
from protofed.deploy.owner import Says
from protofed.deploy.processes import (
    CONNECTION,
    alone,
    commands,
    connect,
    free_port,
    hangup,
    require_free,
    running,
    tool,
    until_listening,
)
from protofed.deploy.server_settings import Settings, check_out, read_nodes, toml
from protofed.errors import LostError, UserError
from protofed.experiment import Experiment, read_yaml
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import made
from protofed.server.round import Round

COMES_BACK = 120.0
"""Seconds in which a client tries to connect first: a server takes one that was killed for present for a minute."""
LASTS = 20.0
"""A connection that lasts so many seconds was one; from then on a client tries until it is told to end."""
PAUSE = 5.0
"""Seconds between two attempts."""
LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
"""A part of the name of a machine."""
NODE = str(Path(follow.__file__).with_name("supernode.py"))

CLIENT = """\
# What this client is and allows. Its owner may change everything but the id.
{facts}
#data: /path/to/images           # a folder or an npz file, or a dataset's name; `deploy client --data` says it too
#data_dir: /path                 # where a dataset's files are
#methods: [fedproto, mp-fedcl]   # any, unless given
#rounds: 200                     # at most
#megabytes: 100                  # of a message, in or out
#send: [prototypes, numbers]     # what may leave: weights, prototypes, numbers
#secure: required                # uploads leave under secure aggregation's masks only
#device: cpu
#threads: 1
"""


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
            raise UserError("DIR", str(folder), "it has no federation.yaml: make one with `protofed deploy init`")
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
    def home(self) -> Path:
        """Flower's configuration and state."""
        return self.server / "flower"

    def client(self, number: int) -> Path:
        """A client's part."""
        return self.folder / "clients" / str(number)


def init(federation: FederationFolder) -> None:
    """Make the folder, with all certificates and keys; what is there is never written over."""
    folder = federation.folder
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError("DIR", str(folder), "it is a file, or not empty; name a new folder")
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
        _fill(federation)
    except BaseException:  # so that the same command works again
        shutil.rmtree(folder)
        raise


def _fill(federation: FederationFolder) -> None:
    """Write certificates, keys and configuration."""
    federation.server.mkdir(mode=0o700)
    (federation.server / "keys").mkdir()
    authority = _authority(federation.days)
    _write(federation.server / "ca.crt", authority[0].public_bytes(Encoding.PEM))
    _secret(federation.server / "ca.key", authority[1])
    _certify(federation.server, "server", federation.host, authority, federation.days)
    for number in range(federation.clients):
        place = federation.client(number)
        place.mkdir(mode=0o700, parents=True)
        key = ec.generate_private_key(ec.SECP384R1())
        _write(place / "key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
        _write(
            federation.server / "keys" / f"{number}.pub",
            key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n",
        )
        _write(place / "ca.crt", authority[0].public_bytes(Encoding.PEM))
        _certify(place, "local", "127.0.0.1", authority, federation.days)
        facts = yaml.safe_dump({"id": number, "server": federation.address}).strip()
        _write(place / "client.yaml", CLIENT.format(facts=facts).encode())
    says = {k: v for k, v in dataclasses.asdict(federation).items() if k != "folder"}
    _write(federation.folder / "federation.yaml", yaml.safe_dump(says, sort_keys=False).encode())


def _is_host(host: str) -> bool:
    """Whether clients can find a server there, and a certificate name it."""
    try:
        ipaddress.ip_address(host)
        return "%" not in host
    except ValueError:
        return len(host) <= 64 and all(re.fullmatch(LABEL, label) for label in host.split("."))


def _authority(days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
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
    return builder.sign(key, hashes.SHA384()), key


def _certify(
    folder: Path, name: str, host: str, authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey], days: int
) -> None:
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
    _write(folder / f"{name}.pem", builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))
    _secret(folder / f"{name}.key", key)


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


def _secret(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """A new file; it is never readable by more than `mode` says."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def serve(federation: FederationFolder, ready: Callable[[], None]) -> int:
    """Flower's SuperLink, until it ends or is told to."""
    server, log = federation.server, federation.server / "superlink.log"
    command = [tool("flower-superlink"), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    command += ["--ssl-keyfile", str(server / "server.key"), "--database", str(server / "state.db")]
    command += ["--host", federation.host, "--port", str(federation.port)]
    with alone(log), _told_to_end() as told:
        require_free(federation.host, federation.port)
        connect(federation.home, federation.address, server / "ca.crt")
        with running(command, federation.home, log) as process:
            until_listening(process, federation.host, federation.port, log)
            _register(federation)
            ready()
            return _until(process, told, log)


def _register(federation: FederationFolder) -> None:
    """Make every client's key known, once; Flower says which node it is."""
    nodes = _nodes(federation)
    new = [number for number in range(federation.clients) if number not in nodes]
    if not new:
        return
    with commands(federation.home) as ask:
        for number in new:
            key = str(federation.server / "keys" / f"{number}.pub")
            said = ask("supernode", "register", key, CONNECTION, "--name", f"client-{number}")
            nodes[number] = int(said["node-id"])
            write_text(federation.server / "nodes.json", json.dumps(nodes, indent=1) + "\n")


def _nodes(federation: FederationFolder) -> dict[int, int]:
    """The nodes of the clients that are registered so far."""
    path = federation.server / "nodes.json"
    return read_nodes(path) if path.exists() else {}


def join(folder: Path, number: int, data: str | None, ready: Callable[[], None]) -> int:
    """Flower's SuperNode for one client, until it ends or is told to."""
    place = next((one for one in (folder / "clients" / str(number), folder) if (one / "client.yaml").is_file()), None)
    if place is None:
        raise UserError("--id", number, f"{folder} has no clients/{number}/client.yaml")
    place = place.resolve()
    path = place / "client.yaml"
    says = Says.read(path, data)
    if says.id != number:
        raise UserError("--id", number, f"{path} is of client {says.id}")
    where = re.fullmatch(r".+:([0-9]{1,5})", says.server or "")
    if says.server is None or where is None or int(where[1]) > 65535:
        raise UserError(f"{path}: server", says.server, "it must be the server's address, as HOST:PORT")
    _check_keys(place)
    _check_data(says.data, says.data_dir)
    log = place / "supernode.log"
    config = f"client={toml(str(path))}" + (f" data={toml(says.data)}" if says.data else "")
    command = [sys.executable, "-P", NODE, "--root-certificates", str(place / "ca.crt")]
    command += ["--superlink", says.server, "--auth-supernode-private-key", str(place / "key")]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", config]
    command += ["--ssl-ca-certfile", str(place / "ca.crt"), "--ssl-certfile", str(place / "local.pem")]
    command += ["--ssl-keyfile", str(place / "local.key")]
    with alone(log), _told_to_end() as told:
        _check_server(says.server, place / "ca.crt")
        ready()
        first, welcome = time.monotonic(), False
        while True:
            began = time.monotonic()
            with running(command, place / "flower", log) as process:
                try:
                    return _until(process, told, log)
                except LostError as error:
                    _check_server(says.server, place / "ca.crt")
                    welcome = welcome or time.monotonic() - began > LASTS
                    if not welcome and time.monotonic() - first > COMES_BACK:
                        raise
                    print(f"not connected: {error}; trying again", flush=True)
            _pause(told, PAUSE)
            if told:
                return 0


def _check_keys(place: Path) -> None:
    """Refuse a client without its keys and certificates: Flower would try for minutes, and not say why."""
    readers: dict[str, Callable[[bytes], object]] = {
        "ca.crt": x509.load_pem_x509_certificate,
        "local.pem": x509.load_pem_x509_certificate,
        "key": lambda data: load_ssh_private_key(data, None),
        "local.key": lambda data: load_pem_private_key(data, None),
    }
    for name, read in readers.items():
        try:
            read((place / name).read_bytes())
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
            raise UserError("DIR", str(place / name), "it is not the file that `protofed deploy init` made") from None


def _check_server(address: str, authority: Path) -> None:
    """Refuse a server of another federation; one that does not answer may come."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), PAUSE) as line:
            ssl.create_default_context(cafile=authority).wrap_socket(line, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        why = f"its certificate is not of this federation ({authority}): {error.verify_message}"
        raise UserError("server", address, why) from None
    except OSError:
        pass


def _check_data(data: str | None, data_dir: str | None) -> None:
    """Read it: a client whose data is not usable would be online, and fail in every run."""
    if data is not None:
        from protofed.data import load  # and torch, which a client that brings no data does not wait for

        load(data, None if data_dir is None else Path(data_dir))


def check(federation: FederationFolder, experiment: Experiment, out: Path) -> None:
    """Refuse an experiment of another number of clients, or one that its folder is not for."""
    if experiment.clients != federation.clients:
        raise UserError("--clients", experiment.clients, f"the federation has {federation.clients}")
    check_out(out, experiment)


def play(federation: FederationFolder, experiment: Experiment, out: Path, each: Callable[[Round], None]) -> None:
    """A run of the whole federation, from its beginning or from where its folder says."""
    settings = Settings(
        str(out.resolve()),
        federation.minimum,
        federation.deadline,
        federation.wait,
        str(federation.server / "nodes.json"),
    )
    apps = federation.server / "apps"
    app = apps / f"{out.name}-{len(list(apps.glob('*'))) if apps.exists() else 0}"
    machine: dict[str, Any] = {"data_dir": None, "device": "cpu", "threads": 1, "engine": "sequential", "width": None}
    write_app(app, dataclasses.replace(experiment, **machine), settings)
    follow.play(federation.home, app, out, each)


def status(federation: FederationFolder) -> dict[str, Any]:
    """Who is there, and which runs there have been; an error where no server answers."""
    nodes = _nodes(federation)
    with commands(federation.home) as ask:
        found = ask("supernode", "list", CONNECTION)["nodes"]
        runs = ask("list", CONNECTION)["runs"]
    online = {int(node["node-id"]): str(node["status"]) for node in found}
    return {
        "address": federation.address,
        "clients": {client: online.get(node, "unknown") for client, node in nodes.items()},
        "runs": [{"id": run["run-id"], "status": run["status"], "began": run["pending-at"]} for run in runs],
    }


@contextlib.contextmanager
def _told_to_end() -> Iterator[list[int]]:
    """Signals that ask for the end, as they come."""
    told: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        told.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, *hangup())}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pause(told: list[int], seconds: float) -> None:
    """So long, unless told to end."""
    until = time.monotonic() + seconds
    while not told and time.monotonic() < until:
        time.sleep(0.1)


def _until(process: subprocess.Popen[bytes], told: list[int], log: Path) -> int:
    """0 when told to end; an error if the process ended by itself."""
    while not told:
        if process.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise LostError(f"it ended with code {process.returncode}: {' '.join(last)}; see {log}")
        time.sleep(0.2)
    return 0
