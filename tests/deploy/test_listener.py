"""The open port: whoever shows no client's key is sent away, and keeps nobody else out."""

from __future__ import annotations

import json
import resource
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from protofed.deploy import listener
from protofed.deploy.attendance import Attendance
from protofed.deploy.events import CONNECTIONS, EVENTS, Events
from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.fleet import Fleet
from protofed.deploy.link import online, open_state
from protofed.deploy.listener import Listener
from protofed.deploy.membership import enrol
from protofed.deploy.node import Line, is_final, why_lost
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
        line.close()  # the server would wait for it before it ends
        log = made.server / CONNECTIONS
        until(lambda: log.exists() and "connection" in log.read_text())
        (event,) = [json.loads(text) for text in log.read_text().splitlines() if '"connection"' in text]
        assert event["address"] == "127.0.0.1"


NONSENSE = (
    b"nonsense\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    bytes(range(256)) * 40,
    b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nflwr-public-key: %s\r\n"
    b"flwr-signature: AAAA\r\nflwr-timestamp: 2026-01-01T00:00:00+00:00\r\n\r\n",
)
ODD_KEY = b"""-----BEGIN PUBLIC KEY-----
MC8wCgYIKlADBwECAwQDIQAAAQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHw==
-----END PUBLIC KEY-----
"""
"""Of a kind that nobody knows."""


def test_what_strangers_send_is_not_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Inside TLS, in place of it, and with a key of an unknown kind; as often as it is sent."""
    with listening(tmp_path, []) as made:
        client = a_client(made)
        client.connect()
        capfd.readouterr()
        trust = ssl.create_default_context(cafile=made.server / "ca.crt")
        for number in range(20 * len(NONSENSE)):
            said = NONSENSE[number % len(NONSENSE)]
            with suppress(OSError), socket.create_connection((made.host, made.port)) as plain:
                plain.sendall(said[:50])
            said = said.replace(b"%s", b64encode(ODD_KEY))
            with suppress(OSError), socket.create_connection((made.host, made.port)) as plain:
                line = trust.wrap_socket(plain, server_hostname=made.host)
                line.settimeout(30)
                line.sendall(said)
                line.recv(100)
                line.close()  # the server would wait for it before it ends
        assert client.receive() is None
        client.leave()
    found = capfd.readouterr()
    assert (found.out, found.err) == ("", "")
    asked = [json.loads(line) for line in (made.server / CONNECTIONS).read_text().splitlines()]
    assert {event["kind"] for event in asked} == {"connection"}
    assert {event["refused"] for event in asked} <= {"it has no key", "there is nothing here"}


class Meddler(threading.Thread):
    """A relay that flips a bit of what goes one way, once so many bytes have gone by."""

    def __init__(self, target: int, upwards: bool, after: int | None) -> None:
        super().__init__(daemon=True)
        self.target, self.upwards, self.after = target, upwards, after
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def run(self) -> None:
        """Take connections."""
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                for one, other, up in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=(one, other, up), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, up: bool) -> None:
        seen = 0
        with one:
            with suppress(OSError):
                while data := bytearray(one.recv(65536)):
                    at = None if self.after is None or up != self.upwards else self.after - seen
                    if at is not None and 0 <= at < len(data):
                        data[at] ^= 1
                    seen += len(data)
                    other.sendall(data)
            for end in (one, other):  # closing alone tells nobody while the other way waits
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def through(relay: Meddler, made: FederationFolder) -> Line:
    place = made.client(0)
    relay.start()
    return Line(f"127.0.0.1:{relay.port}", place / "ca.crt", place / "key", 10**6)


@pytest.mark.parametrize("upwards", [True, False])
def test_a_bit_that_is_flipped_on_the_way_ends_the_connection(
    upwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the handshake, the request or the answer: nothing that was changed is taken for said."""
    monkeypatch.setattr(listener, "PATIENCE", 2.0)  # a length that is changed has either side wait for more
    with listening(tmp_path, []) as made:
        for after in (None, 3, 60, 300, 700, 1500):
            relay = Meddler(made.port, upwards, after)
            client = through(relay, made)
            if after is None:  # the relay itself is no reason
                client.connect()
                client.leave()
            else:
                with pytest.raises(httpx.TransportError):
                    client.connect()
                assert client.node.node_id == 0
            relay.listener.close()
        if upwards:
            assert online(open_state(made.database)) == []  # what came changed was not answered


def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path) -> None:
    """Somebody between a client and its server, with a certificate of its own, while the client runs."""
    (tmp_path / "other").mkdir()
    with listening(tmp_path, []) as made, listening(tmp_path / "other", []) as other:
        place = made.client(0)
        line = Line(other.address, place / "ca.crt", place / "key", 10**6)
        with pytest.raises(httpx.ConnectError) as found:
            line.connect()
        assert "certificate is not valid" in why_lost(found.value)
        assert is_final(why_lost(found.value))
        assert not (other.server / CONNECTIONS).exists()  # not even a signature of its key was sent


def test_more_files_may_be_open_than_is_usual() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 512), before[1]))
        listener.more_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], listener.MOST_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
