"""Clients that come, go, end and differ, with real processes: each is named with its reason, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.deploy.events import CONNECTIONS
from protofed.deploy.federation import FederationFolder
from protofed.deploy.fleet import STALE, TWICE
from protofed.deploy.members import renew
from protofed.deploy.pki import open_authority
from protofed.deploy.wire import PROTOCOL
from protofed.internal.version import VERSION
from tests.deploy.test_door import STAMP, expire
from tests.deploy.test_network import playing, rounds
from tests.deploy.test_rounds import lines
from tests.support.command_line import invoke, refused, succeed
from tests.support.federation_processes import Deployment, protofed, until
from tests.support.membership import admitted, typed
from tests.support.other_versions import NEWER, OPTION, HeldTurns, doing_first, found_first, newer_version

pytestmark = pytest.mark.network

ASKED: dict[str, Any] = {"method": "fesem", "model": "mlp", "eval_every": 5}


def sites(place: Path, number: int) -> None:
    """Files with each client's data."""
    draws = np.random.default_rng(0)
    for k in range(number):
        images = draws.integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
        np.savez(place / f"{k}.npz", images=images, labels=np.arange(40) % 4)


def with_data(made: Deployment, *numbers: int) -> None:
    for number in numbers:
        made.client(number, "--data", str(made.place / f"{number}.npz"))


def events(folder: Path) -> list[dict[str, Any]]:
    """What has been recorded at a server, with who was turned away from it, or at a client."""
    files = [path for name in ("events.jsonl", CONNECTIONS) if (path := folder / name).exists()]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def recorded(folder: Path, **what: Any) -> bool:
    """Whether there is an event of which this is said; of a text, how it begins."""
    return any(
        all(str(event.get(name)).startswith(str(value)) for name, value in what.items()) for event in events(folder)
    )


def has_answered(made: Deployment, client: int) -> None:
    """Wait until the server has a client's answer of the round that is going on."""
    what = {"kind": "train", "step": "answered", "client": client, "round": rounds(made) + 1}
    until(lambda: recorded(made.folder / "server", **what))


def all_rounds(made: Deployment, number: int, out: str = "run") -> list[dict[str, Any]]:
    """Those of a run that has ended, of which none is missing."""
    played = lines(made.place / out)
    assert [line["round"] for line in played] == list(range(1, number + 1))
    assert json.loads((made.place / out / "result.json").read_text())["rounds"] == number
    return played


def said_by(process: subprocess.Popen[str], client: int, text: str) -> None:
    """The next line of a client's terminal is this one."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(f"{STAMP} client {client}: {text}\n", line), line


def test_a_site_is_added_in_round_3_and_another_removed_in_round_5(tmp_path: Path) -> None:
    """And one is added between two halves of the run, which ends with all its rounds."""
    sites(tmp_path, 4)
    turns = HeldTurns(tmp_path / "turns", range(2, 7, 2))
    with Deployment(tmp_path, 2, minimum=2, deadline=120) as made:
        made.server()
        with turns.of_who_starts():
            with_data(made, 0)
        with_data(made, 1)
        with playing(made, "run", **ASKED, rounds=9) as run:
            with turns.of_round(2):
                assert admitted(tmp_path, made.passphrase, "anna") == 2
                made.start("anna", "client", "anna", "--id", "2", "--data", str(tmp_path / "2.npz"))
                members = json.loads(succeed(tmp_path, "deploy", "members", "federation", "--json").out)["members"]
                assert [(row["name"], row["connected"]) for row in members] == [
                    ("client 0", True),
                    ("client 1", True),
                    ("site anna", True),
                ]
            with turns.of_round(4):
                has_answered(made, 1)
                gone = made.processes["client-1"]
                succeed(tmp_path, "deploy", "remove", "federation", "--id", "1")
                assert gone.wait(30) == 1
                assert "error: not connected: it was removed from the federation\n" in made.stop("client-1")
            with turns.of_round(6):
                run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
        again = protofed("deploy", "client", "federation", "--id", "1", "--data", "1.npz", place=tmp_path)
        assert again.wait(60) == 1
        assert "it was removed from the federation" in again.communicate()[0]
        assert admitted(tmp_path, made.passphrase, "berta") == 3
        made.start("berta", "client", "berta", "--id", "3", "--data", str(tmp_path / "3.npz"))
        before = rounds(made)
        outcome = made.run("run", **ASKED, rounds=9)
        assert outcome.code == 0, outcome.err
    played = all_rounds(made, 9)
    changes = {line["round"]: {k: line[k] for k in ("joined", "removed") if k in line} for line in played}
    assert {number: change for number, change in changes.items() if change} == {
        3: {"joined": [2]},
        5: {"removed": [1]},
        before + 1: {"joined": [3]},
    }
    assert [line["participants"] for line in played] == [
        *2 * [[0, 1]],
        *2 * [[0, 1, 2]],
        *(before - 4) * [[0, 2]],
        *(9 - before) * [[0, 2, 3]],
    ]
    assert [line.get("left_out") for line in played] == 9 * [None]
    assert "clients: 2\n" in (tmp_path / "run/config.yaml").read_text()
    changed = [event for event in events(made.folder / "server") if event["kind"] == "member"]
    assert [(event["change"], event["client"]) for event in changed] == [
        ("admitted", 0),
        ("admitted", 1),
        ("admitted", 2),
        ("removed", 1),
        ("admitted", 3),
    ]
    for words in (("report", "run"), ("watch", "run", "--once")):
        succeed(tmp_path, *words)


SLOW_CLOCK = """
import datetime
from flwr.supernode import node_auth_http_interceptor as place
place.now = lambda: datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
"""
OTHER = "it speaks protocol {}, not {}: the older side's protofed must be upgraded"
OTHER_PROTOCOL = """
from protofed.deploy import wire
wire.OLDEST = wire.PROTOCOL = {number}
"""


def test_trouble_of_clients_costs_a_run_nothing_but_their_turns(tmp_path: Path) -> None:
    """The same key twice, a clock an hour off, an admission that ends, other versions: each in a round of one run."""
    sites(tmp_path, 3)
    turns = HeldTurns(tmp_path / "turns", range(2, 8))
    with Deployment(tmp_path, 3, minimum=1, deadline=90) as made:
        made.server()
        with turns.of_who_starts():
            with_data(made, 0)
        with_data(made, 1, 2)
        with playing(made, "run", **ASKED, rounds=10) as run:
            with turns.of_round(2):
                the_same_key_twice(made, 1)
            with turns.of_round(3):
                late = with_a_slow_clock(made, 2)
            with turns.of_round(4):
                late.send_signal(signal.SIGINT)
                assert late.wait(30) == 0
                with_data(made, 2)
                an_admission_ends(made, 1)
            with turns.of_round(5):
                in_another_version(made, 2, PROTOCOL + 1)
            with turns.of_round(6):
                in_another_version(made, 2, PROTOCOL - 1)
                assert typed(made.passphrase, tmp_path, "deploy", "renew", "federation", "--id", "1").code == 0
                until(lambda: events(made.folder / "clients/1")[-1]["kind"] == "connected")
            with turns.of_round(7):
                has_answered(made, 2)
                said = made.stop("client-2")
                with found_first(newer_version(tmp_path / "newer")):
                    with_data(made, 2)
            assert run.wait(120) == 0
        ended = made.stop("client-1")
    left_out = {line["round"]: line["left_out"] for line in all_rounds(made, 10) if "left_out" in line}
    speaks = {number: OTHER.format(PROTOCOL, number) for number in (PROTOCOL + 1, PROTOCOL - 1)}
    assert left_out.pop(5)["1"] in ("no answer within 90 s", "it is gone")
    assert left_out == {
        4: {"2": "not connected"},
        6: {"1": "not connected", "2": f"it refuses: {speaks[PROTOCOL + 1]}"},
        7: {"2": f"it refuses: {speaks[PROTOCOL - 1]}"},
    }
    assert [line["participants"] for line in all_rounds(made, 10)] == [
        *2 * [[0, 1, 2]],
        *[[0, 1, 2], [0, 1], [0, 2], [0], [0, 1]],
        *3 * [[0, 1, 2]],
    ]
    assert re.search(f"{STAMP} client 2: refused: {speaks[PROTOCOL - 1]}\n", said), said
    why = "its admission ended on [0-9-]+: whoever runs the server renews it"
    lost = f"{STAMP} client 1: not connected: {why}; trying again\n"
    assert re.search(f"{lost}{STAMP} client 1: connected again\n", ended), ended
    assert json.loads((tmp_path / "run/flower.json").read_text())["protocol"] == PROTOCOL


def the_same_key_twice(made: Deployment, number: int) -> None:
    """A copy of a client's folder is started while the client is connected."""
    shutil.copytree(made.folder / f"clients/{number}", made.place / "copy", ignore=shutil.ignore_patterns("*.log"))
    words = ("deploy", "client", "copy", "--id", str(number), "--data", f"{number}.npz")
    twice = protofed(*words, place=made.place)
    said_by(twice, number, f"not connected: {re.escape(TWICE)}; trying again")
    twice.send_signal(signal.SIGINT)
    assert twice.wait(30) == 0
    assert recorded(made.folder / "server", kind="connection", client=number, refused=TWICE)


def with_a_slow_clock(made: Deployment, number: int) -> subprocess.Popen[str]:
    """A client ends after its turn, and is started again on a machine whose clock is an hour behind."""
    has_answered(made, number)
    made.stop(f"client-{number}")
    words = ("deploy", "client", "federation", "--id", str(number), "--data", f"{number}.npz")
    with doing_first(made.place / "slow", SLOW_CLOCK):
        late = protofed(*words, place=made.place)
    said_by(late, number, rf"not connected: {re.escape(STALE)} \(it is 360[0-9] s behind\); trying again")
    assert recorded(made.folder / "server", kind="connection", refused=f"{STALE} (it is 360")
    return late


def an_admission_ends(made: Deployment, number: int) -> None:
    """That of a client that is connected, after its turn; it says so, and the server does."""
    has_answered(made, number)
    federation, why = FederationFolder.open(made.folder), "its admission ended on "
    with federation.members_file.changing() as members:
        renew(members, number, None, open_authority(federation.server, made.passphrase), 0)
    until(lambda: recorded(made.folder / f"clients/{number}", kind="disconnected", why=why))
    assert recorded(federation.server, kind="connection", client=number, refused=why)


def in_another_version(made: Deployment, number: int, protocol: int) -> None:
    """A client ends after its turn, and is started again where another version is installed."""
    has_answered(made, number)
    made.stop(f"client-{number}")
    with doing_first(made.place / f"protocol-{protocol}", OTHER_PROTOCOL.format(number=protocol)):
        with_data(made, number)


def test_a_server_is_upgraded_before_its_clients(tmp_path: Path) -> None:
    """Older clients take part until somebody asks for what they do not know, and go on in a run when upgraded."""
    sites(tmp_path, 2)
    newer, turns = newer_version(tmp_path / "newer"), HeldTurns(tmp_path / "turns", range(2, 3))
    with Deployment(tmp_path, 2, minimum=1, wait=5, deadline=90) as made:
        with found_first(newer):
            made.server()
            with turns.of_who_starts():
                with_data(made, 1)
        with_data(made, 0)
        with found_first(newer), playing(made, "other", **ASKED, rounds=1, **{OPTION: 0.5}) as run:
            assert run.wait(120) == 0
        why = f"it does not know the option {OPTION}: protofed {VERSION} is installed here, {NEWER} at the server"
        (line,) = all_rounds(made, 1, "other")
        assert (line["participants"], line["left_out"]) == ([1], {"0": f"it refuses: {why}"})
        with found_first(newer), playing(made, "run", **ASKED, rounds=4) as run:
            with turns.of_round(2):
                has_answered(made, 0)
                said = made.stop("client-0")
                with_data(made, 0)
            assert run.wait(120) == 0
    assert f"client 0: refused: {why}\n" in said
    played = all_rounds(made, 4)
    assert [(line["participants"], line.get("left_out")) for line in played] == 4 * [([0, 1], None)]
    spoken = [json.loads((tmp_path / out / "flower.json").read_text())["protocol"] for out in ("other", "run")]
    assert spoken == [PROTOCOL + 1, PROTOCOL]


def test_the_servers_certificate_ends_and_is_renewed_by_a_restart(tmp_path: Path) -> None:
    sites(tmp_path, 2)
    turns = HeldTurns(tmp_path / "turns", range(2, 3))
    asked = ASKED | {"rounds": 5}
    with Deployment(tmp_path, 2, minimum=2, deadline=60) as made:
        server = made.folder / "server"
        made.server()
        with turns.of_who_starts():
            with_data(made, 0)
        with_data(made, 1)
        with playing(made, "run", **asked) as run:
            with turns.of_round(2):
                made.stop("server")
            assert run.wait(60) == 1
        expire(server / "server.pem", server / "ca.crt", server / "ca.key", made.passphrase)
        said = refused(invoke(tmp_path, "deploy", "server", "federation"))
        assert re.search("server[.]pem' for FILE: it expired on [0-9-]+, and no client accepts it any longer", said)
        assert f"`protofed deploy renew {made.folder}` makes another" in said
        assert typed(made.passphrase, tmp_path, "deploy", "renew", "federation").code == 0
        made.server()
        outcome = made.run("run", **asked)
        assert outcome.code == 0, outcome.err
    assert [line["participants"] for line in all_rounds(made, 5)] == 5 * [[0, 1]]
