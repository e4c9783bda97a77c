"""What ends soon is said for as long as a process runs."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protofed.deploy import node, pki, supervise
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder
from protofed.deploy.membership import renew_client, renew_server, warnings
from protofed.deploy.reminder import DAY, Reminder
from protofed.errors import UserError
from tests.support.federation_processes import Deployment, until
from tests.support.membership import founded

BEGAN = datetime.datetime.now(datetime.UTC)


class Days:
    """A clock that tests set, for what counts seconds and for what looks at certificates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gone = 0.0
        now = SimpleNamespace(now=lambda _: BEGAN + datetime.timedelta(days=self.gone))
        monkeypatch.setattr(pki, "datetime", SimpleNamespace(datetime=now, UTC=datetime.UTC))

    def __call__(self) -> float:
        return self.gone * DAY


def recorded(path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if line["kind"] == "certificate.ends"]


def test_a_server_that_runs_for_a_year_says_every_day_what_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From thirty days before the end on; it looks every few seconds."""
    passphrase = founded(tmp_path, "--clients", "2")
    federation = FederationFolder.open(tmp_path / "federation")
    renew_client(federation, 1, None, passphrase, 100)
    days, said, events = Days(monkeypatch), list[tuple[float, str]](), Events(tmp_path / EVENTS)
    reminder = Reminder(lambda: warnings(federation), lambda line: said.append((days.gone, line)), events, days)
    for quarter in range(4 * 102):
        days.gone = quarter / 4
        reminder.look()
    assert [day for day, _ in said] == [71 + number for number in range(31)]
    end = federation.members()[1].until.date()
    assert f"the admission of client 1 ends on {end}, in 29 days: " in said[0][1]
    assert "ended on" in said[-1][1]
    assert [line["why"] for line in recorded(tmp_path / EVENTS)] == [line for _, line in said]


def test_a_certificate_that_cannot_be_read_ends_nothing(tmp_path: Path) -> None:
    asked = []

    def lines() -> list[str]:
        asked.append(1)
        raise UserError("DIR", "server.pem", "it is no certificate")

    now = [0.0]
    reminder = Reminder(lines, print, Events(tmp_path / EVENTS), lambda: now[0])
    for now[0] in (0.0, 1.0, DAY, DAY + 1):
        reminder.look()
    assert len(asked) == 2


def test_a_server_that_was_not_started_again_says_so(tmp_path: Path) -> None:
    """Its certificate is renewed, and it still shows the one that it has read."""
    passphrase = founded(tmp_path, "--clients", "1")
    federation = FederationFolder.open(tmp_path / "federation")
    renew_server(federation, passphrase, 20)
    lines = supervise._lines(federation)
    assert [line.partition(" ends")[0] for line in lines()] == ["the server's certificate"]
    renew_server(federation, passphrase, 300)
    (line,) = lines()
    assert line.startswith("the certificate that the server started with ends on ")
    assert line.endswith("it is renewed; start the server again")
    assert supervise._lines(federation)() == []


def test_a_client_looks_while_it_waits_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    told, looks = list[int](), list[int]()

    def look() -> None:
        looks.append(1)
        if len(looks) == 5:
            told.append(2)

    monkeypatch.setattr(node, "HeartbeatSender", lambda _: SimpleNamespace(start=print, stop=print))
    nothing = lambda *_: None  # noqa: E731 - what the server and the log say
    line: Any = SimpleNamespace(connect=nothing, beat=nothing, is_connected=nothing, leave=nothing, receive=nothing)
    assert node.play(line, None, told, lambda: None, look) == 0  # type: ignore[arg-type]  # there is no work for it
    assert len(looks) == 5


QUICK = """
from protofed.deploy import reminder, supervise
reminder.DAY = supervise.LOOK = 0.2
from protofed.cli import main
main()
"""
"""The command line, where a day is over soon."""


@contextmanager
def started(made: Deployment, name: str, *words: str) -> Iterator[Path]:
    """A process of it; the file of what it says."""
    path = made.place / f"{name}.txt"
    command = [sys.executable, "-c", QUICK, "deploy", *words]
    with (
        path.open("w") as file,
        subprocess.Popen(command, cwd=made.place, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield path
        finally:
            process.terminate()


@pytest.mark.network
def test_real_processes_say_what_ends_on_terminals_in_logs_and_in_events(tmp_path: Path) -> None:
    made = Deployment(tmp_path, 1)
    federation = FederationFolder.open(made.folder)
    renew_server(federation, made.passphrase, 20)
    renew_client(federation, 0, None, made.passphrase, 10)
    place, server = made.folder / "clients/0", made.folder / "server"
    with started(made, "server", "server", "federation") as there:
        until(lambda: "listening" in there.read_text())
        with started(made, "client", "client", "federation", "--id", "0") as here:
            until(lambda: "running" in here.read_text())
            until(lambda: len(recorded(place / EVENTS)) >= 6 and len(recorded(server / EVENTS)) >= 6)
            outcome = made.run("run", method="fedproto", dataset="digits", train_size=100, model="mlp", rounds=1)
            assert outcome.code == 0, outcome.err
    for text in (
        there.read_text(),
        (server / "server.log").read_text(),
        outcome.err,
        (server / "runs.log").read_text(),
    ):
        assert "the server's certificate ends on " in text
        assert "the admission of client 0 ends on " in text
    for text in (here.read_text(), (place / "client.log").read_text()):
        assert "this client's admission ends on " in text
        assert "the server's certificate ends on " in text
    assert all(" client 0: " in line for line in here.read_text().splitlines())
