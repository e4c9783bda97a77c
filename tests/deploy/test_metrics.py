"""Figures for Prometheus: the text by a parser of its grammar, the numbers by events, the port by who asks."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from socket import create_connection
from threading import Thread

import pytest

from protofed.deploy import metrics
from protofed.deploy.attendance import Attendance
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.metrics import ClientMetrics, Family, ServerMetrics, by_label, exposition, family
from protofed.deploy.pki import expiry
from protofed.errors import UserError
from protofed.internal import loopback
from protofed.internal.loopback import HERE, Page, loopback_server

NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")

ESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
Parsed = dict[str, tuple[str, dict[tuple[tuple[str, str], ...], float]]]


def parsed(text: str) -> Parsed:
    """Prometheus' text format, version 0.0.4: HELP and TYPE before the samples of a family, each family once."""
    assert text.endswith("\n")
    found: Parsed = {}
    helped = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped = line.split()[2]
            assert helped not in found
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == helped
            assert kind in ("counter", "gauge")
            assert kind == "gauge" or name.endswith("_total")
            found[name] = kind, {}
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in found
            assert match[1] == helped
            labels = [
                (name, re.sub(r'\\["\\n]', lambda one: ESCAPED[one[0]], word))
                for name, word in re.findall(LABEL, match[2] or "")
            ]
            assert tuple(labels) not in found[match[1]][1]
            found[match[1]][1][tuple(labels)] = float(match[match.lastindex or 0])
    return found


@pytest.fixture
def made(tmp_path: Path) -> FederationFolder:
    folder = FederationFolder(tmp_path / "federation")
    init(folder, 2)
    folder.nodes_file.write_text('{"0": 11, "1": 12}')
    return folder


def test_a_server_counts_what_its_events_say(made: FederationFolder) -> None:
    log = Events(made.server / EVENTS)
    log.write(kind="round", round=1, seconds=3.0)  # before it began to count
    there = Attendance(log, lambda: {node: client for client, node in made.nodes().items()})
    figures = ServerMetrics(made, there, lambda: 5)
    there.came(11)
    there.refused("10.0.0.9", 401, "it has no key", None)
    for client in (0, 1):
        log.write(kind="train", step="asked", client=client, bytes_out=100)
    log.write(kind="train", step="answered", client=0, bytes_in=40)
    log.write(kind="train", step="answered", client=1, late="no answer within 3 s")
    log.write(kind="train", step="asked", client=1, bytes_out=7)
    log.write(kind="round", round=2, seconds=1.5, bytes_in=40, bytes_out=207)
    found = parsed(figures.text())
    values = {name: samples for name, (_, samples) in found.items()}
    assert values["protofed_clients_registered"] == {(): 2}
    assert values["protofed_clients_connected"] == {(): 1}
    assert values["protofed_clients_awaited"] == {(): 1}
    assert values["protofed_rounds_total"] == {(): 1}
    assert values["protofed_last_round_seconds"] == {(): 1.5}
    assert values["protofed_sent_bytes_total"] == {(): 207}
    assert values["protofed_received_bytes_total"] == {(): 40}
    assert values["protofed_messages_waiting"] == {(): 5}
    assert values["protofed_refusals_total"] == {(("reason", "late"),): 1, (("reason", "not_signed"),): 1}
    ends = expiry(made.server / "server.pem").timestamp()
    assert values["protofed_certificate_expiry_timestamp_seconds"] == {(): ends}
    log.write(kind="run.end", ended="failed", failed="why")
    assert parsed(figures.text())["protofed_runs_total"][1] == {(("ended", "failed"),): 1}
    assert parsed(figures.text())["protofed_clients_awaited"][1] == {(): 0}


def test_a_client_counts_turns_and_refusals(made: FederationFolder) -> None:
    place = made.client(0)
    figures, log = ClientMetrics(place, lambda: True, lambda: None), Events(place / EVENTS)
    log.write(kind="train", client=0, bytes_in=10, bytes_out=20, sent=["weights"])
    log.write(kind="evaluate", client=0, bytes_in=10, bytes_out=5, sent=["accuracies"])
    log.write(kind="train", client=0, bytes_in=10, refused="why", times=3)
    values = {name: samples for name, (_, samples) in parsed(figures.text()).items()}
    assert values["protofed_connected"] == {(): 1}
    assert values["protofed_turns_total"] == {(): 1}
    assert values["protofed_sent_bytes_total"] == {(): 25}
    assert values["protofed_refusals_total"] == {(("reason", "owner"),): 3}
    assert values["protofed_worker_resident_memory_bytes"] == {}


def test_labels_and_numbers_survive() -> None:
    odd = 'a "quoted\\ \n word}'
    text = exposition(
        [by_label("some_total", "About.", "reason", {odd: 1e20, "b": 0.1}), family("g", "gauge", "x", None)]
    )
    assert parsed(text) == {
        "some_total": ("counter", {(("reason", odd),): 1e20, (("reason", "b"),): 0.1}),
        "g": ("gauge", {}),
    }
    assert isinstance(family("g", "gauge", "x", 1), Family)


@contextmanager
def serving(text: str = "here") -> Iterator[int]:
    server = loopback_server(0, {"/metrics": Page(lambda _: text, metrics.FORMAT)})
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_it_is_for_this_machine_by_its_own_name() -> None:
    with serving() as port:
        with urllib.request.urlopen(f"http://{HERE}:{port}/metrics") as answer:
            assert answer.read() == b"here"
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        for path, host, status in (("/metrics", f"evil.example:{port}", 403), ("/other", f"{HERE}:{port}", 404)):
            line = HTTPConnection(HERE, port)
            line.request("GET", path, headers={"Host": host})
            assert line.getresponse().status == status
            line.close()


def test_so_many_are_answered_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that say nothing do not keep others out for ever, and never take more threads than that."""
    monkeypatch.setattr("protofed.internal.loopback._Handler.timeout", 0.5)
    with serving() as port:
        silent = [create_connection((HERE, port)) for _ in range(loopback.AT_ONCE + 3)]
        for one in silent:
            one.settimeout(10)
            assert one.recv(1) == b""  # each is ended, at once or after a while
            one.close()
        with urllib.request.urlopen(f"http://{HERE}:{port}/metrics") as answer:
            assert answer.read() == b"here"


def test_a_port_that_is_taken_is_named() -> None:
    with serving() as port, pytest.raises(UserError, match="--metrics-port"), metrics.served(port, lambda: ""):
        pass
