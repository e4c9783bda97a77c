"""Clients that come, go, end and differ, with real processes: each is named with its reason, and nothing is lost."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.deploy.federation import FederationFolder
from protofed.deploy.fleet import STALE
from protofed.deploy.members import renew
from protofed.deploy.pki import open_authority
from protofed.deploy.wire import PROTOCOL
from tests.deploy.test_network import left_out, playing, rounds
from tests.deploy.test_rounds import lines
from tests.support.command_line import succeed
from tests.support.federation_processes import Deployment, protofed, until
from tests.support.membership import admitted, typed

pytestmark = pytest.mark.network

LONG: dict[str, Any] = {"method": "fesem", "model": "mlp", "rounds": 10_000, "eval_every": 5}


def sites(place: Path, number: int) -> None:
    """Files with each client's data."""
    draws = np.random.default_rng(0)
    for k in range(number):
        images = draws.integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
        np.savez(place / f"{k}.npz", images=images, labels=np.arange(40) % 4)


def last(made: Deployment) -> dict[str, Any]:
    """The last round."""
    return lines(made.place / "run")[-1]


def with_data(made: Deployment, number: int) -> None:
    made.client(number, "--data", str(made.place / f"{number}.npz"))


def stopped(run: Any) -> None:
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130


def test_a_site_is_added_to_a_run_and_another_removed(tmp_path: Path) -> None:
    """While it goes on, and while it does not."""
    sites(tmp_path, 4)
    with Deployment(tmp_path, 2, minimum=2, deadline=60) as made:
        made.server()
        for number in range(2):
            with_data(made, number)
        with playing(made, "run", **LONG) as run:
            until(lambda: rounds(made) >= 2, 120)
            assert admitted(tmp_path, made.passphrase, "anna") == 2
            made.start("anna", "client", "anna", "--id", "2", "--data", str(tmp_path / "2.npz"))
            until(lambda: last(made)["participants"] == [0, 1, 2], 60)
            members = json.loads(succeed(tmp_path, "deploy", "members", "federation", "--json").out)["members"]
            assert [(row["name"], row["connected"]) for row in members] == [
                ("client 0", True),
                ("client 1", True),
                ("site anna", True),
            ]
            gone = made.processes["client-1"]
            succeed(tmp_path, "deploy", "remove", "federation", "--id", "1")
            assert gone.wait(30) == 1
            assert "error: not connected: it was removed from the federation\n" in made.stop("client-1")
            until(lambda: last(made)["participants"] == [0, 2], 60)
            stopped(run)
        again = protofed("deploy", "client", "federation", "--id", "1", "--data", "1.npz", place=tmp_path)
        assert again.wait(60) == 1
        assert "it was removed from the federation" in again.communicate()[0]
        assert admitted(tmp_path, made.passphrase, "berta") == 3
        made.start("berta", "client", "berta", "--id", "3", "--data", str(tmp_path / "3.npz"))
        before = rounds(made)
        with playing(made, "run", **LONG) as run:
            until(lambda: rounds(made) >= before + 6, 120)
            stopped(run)
    told = lines(tmp_path / "run")
    came, went, later = (next(line for line in told if line.get(k) == v) for k, v in (
        ("joined", [2]), ("removed", [1]), ("joined", [3]),
    ))  # fmt: skip
    assert 3 <= came["round"] < went["round"] < later["round"] == before + 1
    assert set(told[-1]["participants"]) == {0, 2, 3}
    assert [line["round"] for line in told] == list(range(1, len(told) + 1))
    assert "clients: 2\n" in (tmp_path / "run/config.yaml").read_text()
    kinds = [json.loads(line) for line in (made.folder / "server/events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["client"]) for event in kinds] == [("admitted", 2), ("removed", 1), ("admitted", 3)]
    for words in (("report", "run"), ("watch", "run", "--once")):
        succeed(tmp_path, *words)


def test_an_admission_that_ends_is_named_and_renewed_while_all_runs(tmp_path: Path) -> None:
    sites(tmp_path, 2)
    with Deployment(tmp_path, 2, minimum=1, deadline=30) as made:
        made.server()
        for number in range(2):
            with_data(made, number)
        federation = FederationFolder.open(made.folder)
        with playing(made, "run", **LONG) as run:
            until(lambda: rounds(made) >= 1, 120)
            with federation.members_file.changing() as members:
                renew(members, 1, None, open_authority(federation.server, made.passphrase), 0)
            until(lambda: left_out(made) == ["1"], 120)
            assert typed(made.passphrase, tmp_path, "deploy", "renew", "federation", "--id", "1").code == 0
            until(lambda: left_out(made) == [], 120)
            stopped(run)
        said = made.stop("client-1")
    assert "not connected: its admission ended on " in said
    assert "whoever runs the server renews it; trying again\nconnected again\n" in said


def test_the_servers_certificate_is_renewed_by_a_restart(tmp_path: Path) -> None:
    sites(tmp_path, 2)
    with Deployment(tmp_path, 2, minimum=2, deadline=60) as made:
        made.server()
        for number in range(2):
            with_data(made, number)
        assert typed(made.passphrase, tmp_path, "deploy", "renew", "federation").code == 0
        with playing(made, "run", **LONG) as run:
            until(lambda: rounds(made) >= 1, 120)
            made.stop("server")
            assert run.wait(60) == 1
        before = rounds(made)
        made.server()
        with playing(made, "run", **LONG) as run:
            until(lambda: rounds(made) >= before + 2, 120)
            stopped(run)


def changed_client(place: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """What a client that is started from now on does first."""
    (place / "changed").mkdir()
    (place / "changed/sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(place / "changed"))


SLOW_CLOCK = """
import datetime
from flwr.supernode import node_auth_http_interceptor as place
place.now = lambda: datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
"""


def test_a_clients_clock_is_an_hour_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Deployment(tmp_path, 1) as made:
        made.server()
        changed_client(tmp_path, monkeypatch, SLOW_CLOCK)
        late = protofed("deploy", "client", "federation", "--id", "0", place=tmp_path)
        assert late.stdout is not None
        line = late.stdout.readline()
        late.send_signal(signal.SIGINT)
        assert late.wait(30) == 0
    assert line.startswith(f"not connected: {STALE} (it is 360")
    assert line.endswith(" s behind); trying again\n")


UPGRADED = """
from protofed.deploy import wire
wire.OLDEST = wire.PROTOCOL = {number}
"""


@pytest.mark.parametrize("number", [PROTOCOL + 1, PROTOCOL - 1])
def test_one_side_is_upgraded(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites(tmp_path, 2)
    with Deployment(tmp_path, 2, minimum=1, wait=10, deadline=30) as made:
        made.server()
        with_data(made, 0)
        changed_client(tmp_path, monkeypatch, UPGRADED.format(number=number))
        with_data(made, 1)
        monkeypatch.delenv("PYTHONPATH")
        outcome = made.run("run", **LONG | {"rounds": 2})
        assert outcome.code == 0, outcome.err
        said = made.stop("client-1")
    end = ": the older side's protofed must be upgraded"
    assert f"refused: it speaks protocol {PROTOCOL}, not {number}{end}\n" in said
    for line in lines(tmp_path / "run"):
        assert line["left_out"] == {"1": f"it refuses: it speaks protocol {PROTOCOL}, not {number}{end}"}
        assert line["participants"] == [0]
