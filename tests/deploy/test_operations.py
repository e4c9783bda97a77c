"""Operations of a real federation: its logs against what was played, its figures, its units, and a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from protofed.deploy.audit import audit
from protofed.deploy.federation import FederationFolder
from protofed.deploy.package import write_package
from protofed.runs.folder import RunFolder
from tests.deploy.test_metrics import parsed
from tests.deploy.test_package import exec_start
from tests.deploy.test_rounds import lines
from tests.support.command_line import succeed
from tests.support.federation_processes import Deployment, until

pytestmark = pytest.mark.network

ASKED: dict[str, Any] = {"method": "fedproto", "dataset": "digits", "train_size": 300, "model": "cnn", "rounds": 3}


def jsonl(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_logs_tell_what_was_played(tmp_path: Path) -> None:
    """Counts, bytes and refusals of both sides against rounds.jsonl and against what clients counted themselves."""
    with Deployment(tmp_path, 3, minimum=2, wait=2) as made:
        made.server()
        path = made.folder / "clients/2/client.yaml"
        path.write_text(path.read_text() + "methods: [fedavg]\n")
        made.everyone()
        outcome = made.run("run", **ASKED)
        assert outcome.code == 0, outcome.err
        path.write_text(path.read_text() + "min_count: 3\n")
        assert made.run("refused", **ASKED | {"rounds": 1}).code == 0
        shown = succeed(tmp_path, "deploy", "watch", "federation", "--once").out
        assert "completed" in shown
        assert shown.count("connected") == 3
    played = lines(tmp_path / "run")
    label = json.loads((tmp_path / "run/flower.json").read_text())["run"]
    server = audit(made.folder)
    run = server.runs[label]
    assert sorted(run.rounds) == [line["round"] for line in played]
    assert (run.method, run.asked, run.how) == ("fedproto", 3, "completed")
    for client in (0, 1):
        turns = [line for line in played if client in line["participants"]]
        own = audit(made.folder / f"clients/{client}")
        theirs, ours = run.shared[str(client)], own.runs[label].shared[str(client)]
        today = json.loads((made.folder / f"clients/{client}/memory/today.json").read_text())
        everything = [one.shared[str(client)] for one in own.runs.values()]
        assert theirs.turns == ours.turns == len(turns)
        assert theirs.bytes_left == ours.bytes_left
        assert sum(one.turns for one in everything) == today["turns"]
        assert sum(one.tests for one in everything) == today["tests"]
        assert sum(one.bytes_left for one in everything) == today["sent"]
        assert theirs.sent == ours.sent == ["prototypes", "accuracies"]
        assert theirs.samples == ours.samples
    greetings = {"query.hello"}
    asked = [line for line in jsonl(made.folder / "server/events.jsonl") if line.get("run") == label and "step" in line]
    told = [line for line in asked if line["kind"] not in greetings]
    up = sum(line.get("bytes_in", 0) for line in told if line["step"] == "answered")
    down = sum(line["bytes_out"] for line in told if line["step"] == "asked")
    assert (up, down) == (sum(line["bytes_up"] for line in played), sum(line["bytes_down"] for line in played))
    refusal = "method fedproto: fedavg may be run"
    assert [one.what for one in server.refused if one.who.endswith(f"{label}, client 2")] == [f"query.hello: {refusal}"]
    sentences = [one.what for one in audit(made.folder / "clients/2").refused]
    assert sentences[0] == f"query.hello: {refusal}"
    assert not audit(made.folder / "clients/2").runs
    changes = [one.what for one in audit(made.folder / "clients/2").limits]
    assert any(change.startswith("min_count 0 became 3") for change in changes)
    assert {one.who for one in server.connections} == {"client 0", "client 1", "client 2"}
    assert len(server.members) == 3
    for one in (made.folder, made.folder / "clients/0"):
        assert succeed(tmp_path, "deploy", "audit", str(one), "--run", label).out


def figures(port: int) -> dict[str, float]:
    """Those without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return {name: samples[()] for name, (_, samples) in parsed(answer.read().decode()).items() if () in samples}


def test_units_start_what_they_name_and_figures_are_served(tmp_path: Path) -> None:
    """ExecStart of the server's unit and of a client's, as systemd would; then metrics, and a stranger's knocks."""
    made = Deployment(tmp_path, 1)
    write_package(made.folder, tmp_path / "package")
    started: list[subprocess.Popen[str]] = []
    try:
        for name, word in (("server", "listening"), ("client-0", "running")):
            words = exec_start(tmp_path / f"package/protofed-{name}.service")
            at = words.index("--metrics-port") + 1
            log = (tmp_path / f"{name}.txt").open("w+")
            started.append(subprocess.Popen([*words[:at], "0"], stdout=log, stderr=subprocess.STDOUT, text=True))
            until(lambda word=word, name=name: word in (tmp_path / f"{name}.txt").read_text(), 300)
        ports = [
            int((tmp_path / f"{name}.txt").read_text().split("/metrics")[0].rpartition(":")[2])
            for name in ("server", "client-0")
        ]
        outcome = made.run("run", **ASKED | {"rounds": 2})
        assert outcome.code == 0, outcome.err
        server, client = map(figures, ports)
        played = lines(tmp_path / "run")
        assert server["protofed_rounds_total"] == len(played) == 2
        assert server["protofed_clients_connected"] == client["protofed_connected"] == 1
        assert client["protofed_turns_total"] == 2
        assert server["protofed_received_bytes_total"] == client["protofed_sent_bytes_total"]
        assert server["protofed_sent_bytes_total"] == client["protofed_received_bytes_total"]
        assert server["process_resident_memory_bytes"] > 1e7
        assert client["protofed_worker_resident_memory_bytes"] > 1e7
        knock = ["curl", "-sk", f"https://127.0.0.1:{made.port}/v1/fleet/activate-node", "-X", "POST"]
        if shutil.which("curl"):
            for _ in range(3):
                subprocess.run(knock, check=True, capture_output=True)
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics") as answer:
                found = parsed(answer.read().decode())["protofed_refusals_total"][1]
            assert found == {(("reason", "not_signed"),): 3}
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGINT)
        codes = [process.wait(40) for process in started]
    assert codes == [0, 0]
    said = (tmp_path / "client-0.txt").read_text().splitlines()
    assert all(" client 0: " in line or line.startswith("metrics: ") for line in said)
    logged = (made.folder / "clients/0/client.log").read_text().splitlines()
    assert all("Z client 0: " in line for line in logged), logged


def test_status_before_the_first_start(tmp_path: Path) -> None:
    """No server, no database: a plain answer, and exit code 1."""
    made = Deployment(tmp_path, 2)
    process = subprocess.run(
        [sys.executable, "-m", "protofed", "deploy", "status", str(made.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr == ""
    assert process.stdout.splitlines()[1:] == ["client 0: registered", "client 1: registered"]


def test_a_run_on_clients_own_data_says_so(tmp_path: Path) -> None:
    """In its title, config.yaml, result, report and exported model; and it goes on with the same experiment."""
    draw = np.random.default_rng(0)
    for client in range(2):
        labels = np.repeat(np.arange(2), 20)
        images = (draw.random((40, 1, 8, 8)) * 100 + labels[:, None, None, None] * 100).astype("uint8")
        np.savez(tmp_path / f"{client}.npz", images=images, labels=labels)
    asked = {"method": "fedavg", "model": "cnn", "rounds": 1, "lr": 0.01}
    with Deployment(tmp_path, 2, minimum=2) as made:
        made.server()
        for client in range(2):
            made.client(client, "--data", str(tmp_path / f"{client}.npz"))
        outcome = made.run("run", **asked)
        assert outcome.code == 0, outcome.err
        assert outcome.out.startswith("fedavg, 2 clients' own data, cnn, seed 0")
        assert made.run("run", **asked).code == 0  # it is the same experiment still
        assert "another experiment" in made.run("run", **asked | {"lr": 0.02}).err
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (config["dataset"], config["split"]) == ("2 clients' own data", "own")
    assert json.loads((tmp_path / "run/result.json").read_text())["dataset"] == "2 clients' own data"
    succeed(tmp_path, "report", "run")
    page = (tmp_path / "run/report.html").read_text()
    assert "own data" in page
    assert "dirichlet" not in page
    succeed(tmp_path, "export", "run", "--out", "model", "--data", str(tmp_path / "0.npz"))
    card = json.loads((tmp_path / "model/card.json").read_text())
    assert card["data"]["dataset"] == "2 clients' own data"


FULL = """
import sys
from pathlib import Path
from tests.deploy.test_operations import fill_and_go_on
fill_and_go_on(Path(sys.argv[1]))
"""


def fill_and_go_on(place: Path) -> None:
    """A run whose server's disk, of 48 MB, is full after its first round."""
    asked = ASKED | {"rounds": 40}
    with Deployment(place, 2, minimum=2, deadline=60, wait=120) as made:
        elsewhere = shutil.move(made.folder / "clients", place.parent / "clients")  # whose disk has room
        (made.folder / "clients").symlink_to(elsewhere)
        made.server()
        made.everyone()
        (place / "experiment.yaml").write_text(yaml.safe_dump({"defence": "none"} | asked))  # as `made.run` says, too
        words = [sys.executable, "-m", "protofed", "deploy", "run", "federation", "experiment.yaml", "--out", "run"]
        with (place.parent / "said.txt").open("w") as said:  # on another disk
            run = subprocess.Popen(
                words, cwd=place, stdout=said, stderr=said, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            until(lambda: (place / "run/rounds.jsonl").exists() and len(lines(place / "run")) >= 2, 300)
            with (place / "filler").open("wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
            code = run.wait(300)
        text = (place.parent / "said.txt").read_text()
        assert code == 1, text
        assert "Traceback" not in text
        assert "Error" not in text, text
        assert text.splitlines()[-1].startswith(
            "the disk is full; what was written before is whole; continue with: "
        ), text
        before = lines(place / "run")
        assert 2 <= len(before) < 40
        assert made.processes["server"].poll() is None
        (place / "filler").unlink()
        (place / "experiment.yaml").unlink()
        outcome = made.run("run", **asked)
        assert outcome.code == 0, outcome.err
        after = lines(place / "run")
        assert [line["round"] for line in after] == list(range(1, 41))
        assert [line["losses"] for line in after[: len(before) - 1]] == [line["losses"] for line in before[:-1]]
        assert RunFolder(place / "run").played()
        found = audit(FederationFolder.open(made.folder).folder)
        assert [one.asked for one in found.runs.values()] == [40]
        assert len(found.runs[next(iter(found.runs))].rounds) == 40


def test_a_full_disk_at_the_server_is_named_and_costs_nothing(tmp_path: Path) -> None:
    """On a small file system of its own, where this machine lets a user make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=48m tmpfs {place} && exec {sys.executable} -c '{FULL}' {place}"
    may = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs tmpfs {place}"], capture_output=True, check=False
    )
    if may.returncode:
        pytest.skip("a user cannot mount anything here")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
