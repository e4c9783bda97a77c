"""The long-lived processes of a federation: Flower's SuperLink at the server, a SuperNode at every client."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from protofed.deploy.federation import FederationFolder
from protofed.deploy.owner import Says
from protofed.deploy.pki import check_keys
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
from protofed.deploy.server_settings import toml
from protofed.errors import LostError, UserError
from protofed.internal.atomic_files import write_text

COMES_BACK = 120.0
"""Seconds in which a client tries to connect first: a server takes one that was killed for present for a minute."""
LASTS = 20.0
"""A connection that lasts so many seconds was one; from then on a client tries until it is told to end."""
PAUSE = 5.0
"""Seconds between two attempts."""
NODE = str(Path(__file__).with_name("supernode.py"))


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
    nodes = federation.nodes()
    new = [number for number in range(federation.clients) if number not in nodes]
    if not new:
        return
    with commands(federation.home) as ask:
        for number in new:
            key = str(federation.server / "keys" / f"{number}.pub")
            said = ask("supernode", "register", key, CONNECTION, "--name", f"client-{number}")
            nodes[number] = int(said["node-id"])
            write_text(federation.server / "nodes.json", json.dumps(nodes, indent=1) + "\n")


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
    check_keys(place)
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
