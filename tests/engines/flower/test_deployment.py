"""A federation in five commands, with real processes, TLS and keys."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.helpers import everything_in, invoke, succeed
from engines.flower.federation import alive, descendants, federation, until
from engines.flower.test_rounds import assert_same, sequential
from protofed.deployment import Federation
from protofed.engines.flower import follow
from protofed.engines.flower.client import Owner
from protofed.engines.flower.follow import HOPELESS
from protofed.engines.flower.processes import Ask
from protofed.errors import UserError
from protofed.experiment import Experiment

ASKED: dict[str, Any] = {"method": "fedproto", "dataset": "digits", "train_size": 300, "alpha": 0.5, "model": "cnn"}
ASKED |= {"rounds": 2, "eval_every": 2}


def test_two_clients_over_tls_equal_the_sequential_engine(tmp_path: Path) -> None:
    with federation(tmp_path, 2, minimum=2) as made:
        outcome = made.run("run", **ASKED)
        assert outcome.code == 0, outcome.err
        assert "round 2/2" in outcome.err
        state = json.loads(succeed(tmp_path, "deploy", "status", "federation", "--json").out)
        assert state["clients"] == {"0": "online", "1": "online"}
        assert [run["status"] for run in state["runs"]] == ["finished:completed"]
        below = {process.pid: descendants(process.pid) for process in made.processes.values()}
        assert len(below) == 3
        assert all(len(pids) >= 2 for pids in below.values())  # Flower's process, and the one that starts its apps
        started = [pid for process, pids in below.items() for pid in (process, *pids)]
    assert not made.listening()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    local = sequential(Experiment(**ASKED, clients=2, engine="sequential", device="cpu", threads=1))
    assert_same(tmp_path / "run", local)


def test_what_only_starts_processes_imports_no_torch() -> None:
    """A server and its clients wait for days, and a command is answered at once."""
    code = "import sys, protofed.cli, protofed.deployment; print({'torch', 'flwr'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Also with one that was killed, and could not stop it."""
    code = f"""
from pathlib import Path
from protofed.engines.flower.processes import running
with running(["sleep", "60"], Path({str(tmp_path)!r}), Path({str(tmp_path / "log")!r})) as process:
    print(process.pid, flush=True)
    process.wait()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        started = int(starter.stdout.readline())
        assert alive(started)
        starter.kill()
    until(lambda: not alive(started), 10)


def test_init_makes_keys_that_only_their_owner_reads(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--host", "example.org")
    folder = tmp_path / "federation"
    secret = {"ca.key", "server.key", "key", "local.key"}
    for path in folder.rglob("*"):
        if path.is_file():
            assert (stat.S_IMODE(path.stat().st_mode) & 0o077 == 0) == (path.name in secret), path
    for place in (folder / "server", folder / "clients/0", folder / "clients/1"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert "server: example.org:9092" in (folder / "clients/1/client.yaml").read_text()
    assert not (folder / "clients/0/ca.key").exists()
    before = {path: (folder / path).read_bytes() for path in everything_in(folder) if (folder / path).is_file()}
    outcome = invoke(tmp_path, "deploy", "init", "federation", "--clients", "3")
    assert (outcome.code, "not empty" in outcome.err) == (2, True)
    assert {path: (folder / path).read_bytes() for path in before} == before


def test_wrong_input_is_one_line(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2")
    (tmp_path / "experiment.yaml").write_text("method: fedproto\nclients: 3\n")
    (tmp_path / "good.yaml").write_text("method: fedproto\n")
    (tmp_path / "model.yaml").write_text("model: cnnn\n")
    (tmp_path / "data.yaml").write_text("dataset: digits+digit\n")
    for name in ("begun", "local"):  # one over a network, one not
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(Experiment("fedavg", clients=2, seed=7, device="cuda").to_yaml())
    (tmp_path / "begun/flower.json").write_text("{}")
    for words, why in (
        (("init", "other", "--clients", "0"), "--clients"),
        (("init", "other", "--clients", "2", "--minimum", "3"), "--minimum"),
        (("init", "other", "--clients", "2", "--port", "70000"), "--port"),
        (("server", "nowhere"), "federation.yaml"),
        (("client", "federation", "--id", "7"), "--id"),
        (("client", "federation", "--id", "1", "--data", "npz:none.npz"), "there is no none.npz"),
        (("client", "federation", "--id", "1", "--data", "digit"), "did you mean 'digits'"),
        (("run", "federation", "nowhere.yaml"), "nowhere.yaml"),
        (("run", "federation", "experiment.yaml"), "--clients"),
        (("run", "federation", "model.yaml"), "did you mean 'cnn'"),
        (("run", "federation", "data.yaml"), "did you mean 'digits'"),
        (("run", "federation", "good.yaml", "--out", "good.yaml"), "it exists"),
        (("run", "federation", "good.yaml", "--out", "federation"), "it exists"),
        (("run", "federation", "good.yaml", "--out", "local"), "it exists"),
        (
            ("run", "federation", "good.yaml", "--out", "begun"),
            "it holds another experiment (method 'fedavg', not 'fedproto'; seed 7, not 0)",
        ),
    ):
        outcome = invoke(tmp_path, "deploy", *words)
        assert outcome.code == 2, words
        assert len(outcome.err.splitlines()) == 1
        assert why in outcome.err
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "federation/server/apps").exists()  # nothing was submitted


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"images": np.full((20, 8, 8), np.nan)}, "images float64"),
        ({"images": np.full((20, 8, 8), "a")}, "images <U1"),
        ({"labels": np.full(20, np.nan)}, "labels float64"),
        ({"labels": np.full(20, -1)}, "numbers start at 0"),
        ({"labels": np.arange(20) * 10**6}, "no large gaps"),
        ({"labels": np.arange(19)}, "labels"),
        (None, "0 pictures"),
    ],
)
@pytest.mark.parametrize("said", ["flag", "file"])
def test_a_client_whose_data_is_not_usable_does_not_start(
    change: dict[str, Any] | None, why: str, said: str, tmp_path: Path
) -> None:
    """Whether --data or client.yaml names it; without `change` it is an empty folder."""
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--port", "9")
    path = tmp_path / ("data" if change is None else "data.npz")
    if change is None:
        path.mkdir()
    else:
        arrays: dict[str, Any] = {"images": np.zeros((20, 8, 8), np.uint8), "labels": np.arange(20) % 2}
        np.savez(path, **arrays | change)
    if said == "file":
        with (tmp_path / "federation/clients/1/client.yaml").open("a") as file:
            file.write(f"data: {'folder' if change is None else 'npz'}:{path}\n")
    words = ("--data", str(path)) if said == "flag" else ()
    outcome = invoke(tmp_path, "deploy", "client", "federation", "--id", "1", *words)
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
    assert why in outcome.err


@pytest.mark.parametrize(
    ("details", "code", "said"),
    [
        ("0 of at least 2 clients came\nwithin 12 s", 1, "0 of at least 2 clients came within 12 s; continue with: "),
        (f"{HOPELESS}--model: 'x' is not usable; no", 1, "error: the run has failed: --model: 'x' is not usable; no"),
    ],
)
def test_a_run_that_failed_says_why(
    details: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to continue, only where that can help."""
    failed = {"status": "finished:failed", "status-details": f"ServerApp failed with exception: {details}"}

    @contextmanager
    def commands(_: Path) -> Iterator[Ask]:
        yield lambda *words: {"run-id": 5} if words[0] == "run" else {"runs": [failed]}

    monkeypatch.setattr(follow, "commands", commands)
    monkeypatch.setattr(follow, "ASK", 0.0)
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2")
    (tmp_path / "experiment.yaml").write_text("method: fedproto\n")
    outcome = invoke(tmp_path, "deploy", "run", "federation", "experiment.yaml", "--quiet")
    assert (outcome.code, len(outcome.err.splitlines())) == (code, 1)
    assert said in outcome.err
    assert ("continue with" in outcome.err) == (HOPELESS not in details)


def test_status_without_a_server_says_so(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--port", "9")
    outcome = invoke(tmp_path, "deploy", "status", "federation")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["federation"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host: here\n", "does not say clients"),
        ("clients: three\n", "clients: 'three'"),
        ("clients: 3\nprot: 9\n", "did you mean 'port'"),
        ("clients: 3\nfolder: /\n", "'folder'"),
    ],
)
def test_a_federation_that_is_none_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "federation.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"federation\.yaml.*{message}"):
        Federation.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: here\n", "does not say id"),
        ("id: 1\nmegabytes: many\n", "megabytes: 'many'"),
        ("id: 1\nmethods: 5\n", "methods: 5"),
        ("id: 1\nsend: [1]\n", r"send: \[1\]"),
        ("id: 1\nmethod: fedavg\n", "did you mean 'methods'"),
    ],
)
def test_an_owner_who_says_what_cannot_be_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "client.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"client\.yaml.*{message}"):
        Owner.of({"client": str(tmp_path / "client.yaml")})
