"""The open port: whoever shows no client's key is sent away, and keeps nobody else out."""

from __future__ import annotations

import json
import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofed.deploy import listener
from protofed.deploy.attendance import Attendance
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.fleet import Fleet
from protofed.deploy.link import open_state
from protofed.deploy.listener import Listener
from protofed.deploy.membership import enrol
from protofed.deploy.node import Line
from protofed.deploy.processes import free_port
from tests.support.federation_processes import until


@contextmanager
def listening(place: Path, told: list[str]) -> Iterator[FederationFolder]:
    made = FederationFolder(place / "federation", port=free_port())
    init(made, 1)
    enrol(made, begin=True)
    attendance = Attendance(Events(made.server / EVENTS), dict)
    application = Fleet(open_state(made.database), attendance=attendance)
    keys = (str(made.server / name) for name in ("server.pem", "server.key"))
    server = Listener(application, application.strangers, told.append, made.host, made.port, *keys)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield made
    finally:
        server.should_exit = True
        thread.join()


def half_a_request(made: FederationFolder, safe: bool = True) -> socket.socket:
    """A stranger that begins to ask, and does not go on."""
    line = socket.create_connection((made.host, made.port))
    if safe:
        trust = ssl.create_default_context(cafile=made.server / "ca.crt")
        line = trust.wrap_socket(line, server_hostname=made.host)
        line.send(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nX-more: ")
    line.settimeout(30)
    return line


def closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def a_client(made: FederationFolder) -> Line:
    place = made.client(0)
    return Line(made.address, place / "ca.crt", place / "key", 10**6)


def test_who_shows_no_key_is_sent_away_and_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "PATIENCE", 2.0)
    monkeypatch.setattr(listener, "MOST_STRANGERS", 5)
    told: list[str] = []
    with listening(tmp_path, told) as made:
        client = a_client(made)
        client.connect()
        open_ones = [half_a_request(made) for _ in range(12)]
        assert all(closed(line) for line in open_ones[:7])  # for those that came later
        other = half_a_request(made, safe=False)
        assert client.receive() is None
        assert all(closed(line) for line in [*open_ones, other])  # their time is over
        assert client.beat()
        client.leave()
        until(lambda: len(told) >= 12)  # who does not finish the handshake is not even told of
        assert len(told) == 12  # and the client, which came first, was not sent away
    assert set(told) == {"127.0.0.1"}


def test_an_address_that_a_stranger_tells_is_not_believed(tmp_path: Path) -> None:
    """Nor is it given another protocol, on which it could stay."""
    with listening(tmp_path, []) as made:
        line = half_a_request(made)
        line.send(b"y\r\nX-Forwarded-For: 203.0.113.9\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 401")
        log = made.server / EVENTS
        until(lambda: log.exists() and "connection" in log.read_text())
        (event,) = [json.loads(text) for text in log.read_text().splitlines() if '"connection"' in text]
        assert event["address"] == "127.0.0.1"


def test_more_files_may_be_open_than_is_usual() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        listener.more_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], listener.MOST_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
