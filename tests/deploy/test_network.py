"""What can go wrong between machines, really produced: killed, stopped and lying clients, wrong keys, a dead server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from protofed.deploy.link import open_state
from protofed.deploy.processes import environment, hangup, tool
from protofed.deploy.wire import PROTOCOL
from protofed.experiment import Experiment
from tests.deploy.test_rounds import OWN_CODE, assert_same, lines, sequential
from tests.engines.test_alone import METHODS
from tests.support.command_line import invoke, succeed
from tests.support.federation_processes import Deployment, alive, descendants, federation, protofed, until

pytestmark = pytest.mark.network

DATA: dict[str, Any] = {"dataset": "digits", "train_size": 300, "alpha": 0.5}
BASE: dict[str, Any] = DATA | {"method": "fedproto", "model": "cnn", "eval_every": 100}
FOUR = ("fedproto", "mp-fedcl", "fedplcc", "fedsc")


def asked(method: str, rounds: int = 2) -> dict[str, Any]:
    return DATA | {"method": method, "rounds": rounds} | METHODS[method]


def here(values: dict[str, Any], clients: int) -> Experiment:
    return Experiment(**values, clients=clients, engine="sequential", device="cpu", threads=1)


@contextmanager
def playing(made: Deployment, out: str, **experiment: Any) -> Iterator[subprocess.Popen[str]]:
    """`deploy run`, going on."""
    (made.place / "experiment.yaml").write_text(yaml.safe_dump({"defence": "none", **experiment}))
    process = protofed("deploy", "run", "federation", "experiment.yaml", "--out", out, place=made.place)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rounds(made: Deployment, out: str = "run") -> int:
    path = made.place / out / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("method", FOUR)
def test_the_simulation_equals_the_sequential_engine(method: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(asked(method) | {"clients": 4, "threads": 1}))
    succeed(tmp_path, "run", "--config", "experiment.yaml", "--engine", "flower-sim", "--out", "run", "--quiet")
    assert_same(tmp_path / "run", sequential(here(asked(method), 4)))
    assert "engine: flower-sim" in (tmp_path / "run/config.yaml").read_text()


def test_the_simulation_runs_a_method_and_a_model_of_ones_own(tmp_path: Path) -> None:
    """Named from the folder where the command is typed."""
    (tmp_path / "mine.py").write_text(OWN_CODE)
    named = {
        "method": "mine.py:Mine",
        "model": "mine.py:Small",
        "clients": 2,
        "rounds": 1,
        "train_size": 100,
        "threads": 1,
    }
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(named))
    succeed(tmp_path, "run", "--config", "experiment.yaml", "--engine", "flower-sim", "--out", "run", "--quiet")
    assert json.loads((tmp_path / "run/result.json").read_text())["method"] == "mine"


def test_four_processes_over_tls_equal_the_sequential_engine(tmp_path: Path) -> None:
    with federation(tmp_path, 4, minimum=4) as made:
        for method in FOUR:
            outcome = made.run(method, **asked(method))
            assert outcome.code == 0, outcome.err
            assert_same(tmp_path / method, sequential(here(asked(method), 4)))


def test_clients_in_processes_agree_on_public_images(tmp_path: Path) -> None:
    """Two messages an exchange, between which a client's process ends: it keeps its model in a file."""
    params = {"public_images": 40, "public_batch": 16, "exchange": "round"}
    given = {"method": "fccl-plus", "params": params, "public": "digit-domains", "model": "cnn", "lr": 0.001}
    given |= {"dataset": "digits", "train_size": 120, "alpha": 1.0, "rounds": 2}
    with federation(tmp_path, 2, minimum=2) as made:
        outcome = made.run("run", **given)
        assert outcome.code == 0, outcome.err
    assert_same(tmp_path / "run", sequential(here(given, 2)))


def test_a_killed_client_is_left_out_and_may_come_back(tmp_path: Path) -> None:
    with federation(tmp_path, 3, minimum=2, deadline=20) as made, playing(made, "run", **BASE, rounds=10_000) as run:
        until(lambda: rounds(made) == 1, 120)
        process = made.processes.pop("client-1")
        for pid in (process.pid, *descendants(process.pid)):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        until(lambda: left_out(made) == ["1"], 120)
        made.client(1)
        until(lambda: left_out(made) == [], 120)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130


def left_out(made: Deployment) -> list[str]:
    """Of the last round."""
    return list(lines(made.place / "run")[-1].get("left_out", {}))


def test_a_client_that_hangs_misses_its_deadline(tmp_path: Path) -> None:
    with federation(tmp_path, 3, minimum=2, deadline=10) as made, playing(made, "run", **BASE, rounds=10_000) as run:
        until(lambda: rounds(made) == 1, 120)
        process = made.processes["client-2"]
        stopped = [process.pid, *descendants(process.pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: left_out(made) == ["2"], 120)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        until(lambda: left_out(made) == [], 120)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    assert "no answer within 10 s" in next(
        line["left_out"]["2"] for line in lines(tmp_path / "run") if "left_out" in line
    )


def test_a_slow_client_is_not_waited_for_and_its_turn_counts(tmp_path: Path) -> None:
    """With --async 2 two of three go on while the third sleeps in its turn; when it wakes up, its answer is old."""

    def line(number: int) -> Any:
        return json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[number])

    with federation(tmp_path, 3, minimum=2) as made, playing(made, "run", **BASE, async_=2, rounds=10_000):
        until(lambda: rounds(made) >= 2, 120)
        slow = descendants(made.processes["client-1"].pid)
        for pid in slow:
            os.kill(pid, signal.SIGSTOP)
        asleep = rounds(made)
        until(lambda: rounds(made) >= asleep + 6, 120)
        for pid in slow:
            os.kill(pid, signal.SIGCONT)
        assert all(line(number)["participants"] == [0, 2] for number in range(asleep + 2, asleep + 6))
        until(lambda: 1 in line(-1)["participants"], 120)
        late = next(one for one in map(line, range(asleep + 6, rounds(made))) if 1 in one["participants"])
        assert late["staleness"][late["participants"].index(1)] >= 4
        assert "left_out" not in late


def test_a_worker_that_hangs_is_ended_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with federation(tmp_path, 2, minimum=1, deadline=5) as made, playing(made, "run", **BASE, rounds=10_000) as run:
        until(lambda: rounds(made) == 1, 120)
        (worker,) = descendants(made.processes["client-1"].pid)
        os.kill(worker, signal.SIGSTOP)
        until(lambda: left_out(made) == ["1"], 60)
        until(lambda: left_out(made) == [], 60)
        assert not alive(worker)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130


LIES = {
    "raises": "raise ValueError('patient 17')",
    "garbage": "return wire.pack({'id': 2, 'loss': 1.0}, messages.Upload(weights={'x': torch.ones(9)}))",
    "nothing": "return wire.Packet('', b'', b'')",
    "dies": "os._exit(3)",
    "speaks another protocol": "wire.PROTOCOL = 99; return wire.pack({'id': 2, 'loss': 1.0})",
    "has another model": """told, data = wire.unpack(train(mine, asked), 10**9)
        ((name, found),) = messages.Upload.decode(data).prototypes.items()
        return wire.pack(told, messages.Upload(prototypes={name: found._replace(vectors=found.vectors[..., :3])}))""",
}
REASONS = {
    "raises": "ValueError",
    "dies": "its process died",
    "speaks another protocol": f"it speaks protocol 99, not {PROTOCOL}",
    "has another model": "shape",
}


def changed_worker(place: Path, kind: str, body: str) -> str:
    """A path for PYTHONPATH, with which a client's worker does something else for messages of a kind."""
    code = f"""
import os, sys
if "protofed.deploy.warm_worker" in sys.orig_argv:
    import torch
    from protofed import messages
    from protofed.deploy import client, wire
    {kind.partition(".")[0]} = client.HANDLERS["{kind}"]
    def changed(mine, asked):
        {body}
    client.HANDLERS["{kind}"] = changed
"""
    (place / "changed").mkdir()
    (place / "changed" / "sitecustomize.py").write_text(code)
    return str(place / "changed")


@pytest.mark.parametrize("how", LIES)
def test_a_client_that_lies_or_dies_is_left_out(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose owner has changed what is installed there."""
    path = changed_worker(tmp_path, "train", LIES[how])
    with Deployment(tmp_path, 3, minimum=2, deadline=60) as made:
        made.server()
        made.client(0)
        made.client(1)
        monkeypatch.setenv("PYTHONPATH", path)
        made.client(2)
        monkeypatch.delenv("PYTHONPATH")
        outcome = made.run("run", **BASE, rounds=1)
        assert outcome.code == 0, outcome.err
    (line,) = lines(tmp_path / "run")
    assert list(line["left_out"]) == ["2"], line
    assert REASONS.get(how, "") in line["left_out"]["2"]
    assert "patient" not in json.dumps(line) + (made.folder / "server/server.log").read_text()


def test_a_killed_server_continues_after_its_last_round(tmp_path: Path) -> None:
    values = BASE | {"method": "mp-fedcl", "model": "mlp", "rounds": 4, "eval_every": 4}
    with federation(tmp_path, 3, minimum=3) as made:
        with playing(made, "run", **values) as run:
            until(lambda: rounds(made) >= 2, 180)
            process = made.processes.pop("server")
            for pid in (process.pid, *descendants(process.pid)):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            assert run.wait(30) == 1
            assert run.stdout is not None
            assert "the server is not running" in run.stdout.read()
        assert not (tmp_path / "run/result.json").exists()
        made.server()
        outcome = made.run("run", **values)
        assert outcome.code == 0, outcome.err
    assert_same(tmp_path / "run", sequential(here(values, 3)))


def test_a_run_that_fails_or_is_stopped_says_so(tmp_path: Path) -> None:
    with Deployment(tmp_path, 2, minimum=2, wait=5) as made:
        made.server()
        outcome = made.run("nobody", **BASE, rounds=2)
        assert outcome.code == 1
        assert "0 of at least 2 clients came within 5 s; continue with" in outcome.err
        made.client(0)
        made.client(1)
        signals = [signal.SIGINT, signal.SIGTERM, *hangup()]  # which processes below nohup ignore
        for how in signals:
            with playing(made, f"run-{how.name}", **BASE, rounds=100) as run:
                until(lambda how=how: rounds(made, f"run-{how.name}") >= 1, 120)
                run.send_signal(how)
                assert run.wait(60) == 130
        state = json.loads(succeed(tmp_path, "deploy", "status", "federation", "--json").out)
        assert sorted(run["status"] for run in state["runs"]) == [
            "finished:failed",
            *len(signals) * ["finished:stopped"],
        ]


def test_a_server_that_ends_during_a_run_leaves_nothing(tmp_path: Path) -> None:
    """The run ends too, says why, and clients wait for the server."""
    with federation(tmp_path, 2, minimum=2) as made:
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with playing(made, f"run-{how.name}", **BASE, rounds=100) as run:
                until(lambda how=how: rounds(made, f"run-{how.name}") >= 1, 120)
                below = descendants(made.processes["server"].pid)
                made.stop("server", how)
                assert run.wait(30) == 1
            assert not [pid for pid in below if alive(pid)]
            assert not made.listening()
            made.server()
        outcome = made.run("last", **BASE, rounds=2)
        assert outcome.code == 0, outcome.err


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """Its round is played again, for all must answer; the client has stayed connected."""
    values = BASE | {"rounds": 6}
    with federation(tmp_path, 2, minimum=2) as made, playing(made, "run", **values) as run:
        until(lambda: rounds(made) >= 2, 120)
        (worker,) = descendants(made.processes["client-1"].pid)
        os.kill(worker, signal.SIGKILL)
        assert run.wait(120) == 0
        (other,) = descendants(made.processes["client-1"].pid)
        assert other != worker
        assert "a new one is started" in made.stop("client-1")
    assert_same(tmp_path / "run", sequential(here(values, 2)))


def test_a_client_that_joins_later_and_mixed_architectures(tmp_path: Path) -> None:
    with Deployment(tmp_path, 3, minimum=2, wait=15) as made:
        made.server()
        made.client(0)
        made.client(1)
        with playing(made, "run", **BASE | {"model": "cnn-18,cnn,cnn-22"}, rounds=10_000) as run:
            until(lambda: rounds(made) >= 3, 200)
            assert left_out(made) == ["2"]
            made.client(2)
            until(lambda: left_out(made) == [], 60)
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
    assert lines(tmp_path / "run")[-1]["participants"] == [0, 1, 2]


def test_own_data_of_every_client(tmp_path: Path) -> None:
    """One comes later, one has forgotten to say where it is, and another experiment does not go on in the folder."""
    import numpy as np

    draws = np.random.default_rng(0)
    for k in range(3):
        images = draws.integers(0, 255, (40, 1, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"{k}.npz", images=images, labels=np.arange(40) % 4)
    values: dict[str, Any] = {"method": "fedavg", "model": "mlp", "rounds": 60, "eval_every": 60}
    with Deployment(tmp_path, 4, minimum=2, wait=15) as made:
        made.server()
        for k in range(2):
            made.client(k, "--data", str(tmp_path / f"{k}.npz"))
        made.client(3)
        with playing(made, "run", **values) as run:
            until(lambda: rounds(made) >= 1, 120)
            made.client(2, "--data", str(tmp_path / "2.npz"))
            assert run.wait(300) == 0
        outcome = made.run("run", **values | {"seed": 7})
        assert (outcome.code, "another experiment (seed 0, not 7)" in outcome.err) == (2, True)
    first, *_, last = lines(tmp_path / "run")
    assert (first["participants"], last["participants"]) == ([0, 1], [0, 1, 2])
    assert last["left_out"] == {"3": "it brings no data, but others do: say --data"}
    succeed(tmp_path, "export", "run", "--out", "model", "--data", "2.npz")
    predicted = json.loads(succeed(tmp_path, "predict", "model", "0.npz", "--json").out)["predictions"]
    assert {row["class"] for row in predicted} <= {*"0123"}


@contextmanager
def node(made: Deployment, number: int, *changes: tuple[str, str | None]) -> Iterator[subprocess.Popen[bytes]]:
    """A SuperNode like that of a client, but with other options."""
    place = made.folder / "clients" / str(number)
    options: dict[str, str | None] = {
        "--root-certificates": str(place / "ca.crt"),
        "--superlink": f"127.0.0.1:{made.port}",
        "--auth-supernode-private-key": str(place / "key"),
        "--max-retries": "1",
        "--host": "127.0.0.1",
        "--port": "0",
    }
    for name, value in changes:
        options[name] = value
    words = [word for name, value in options.items() if value is not None for word in (name, value) if word]
    process = subprocess.Popen(
        [tool("flower-supernode"), *words],
        env=environment(made.folder / "other"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_strangers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = Deployment(tmp_path / "other", 1)
    theirs = stranger.folder / "clients/0"
    with Deployment(tmp_path, 1) as made:
        made.server()
        cases: dict[str, list[tuple[str, str | None]]] = {
            "unknown key": [("--auth-supernode-private-key", str(theirs / "key"))],
            "no key": [("--auth-supernode-private-key", None)],
            "plaintext": [("--root-certificates", None), ("--insecure", ""), ("--auth-supernode-private-key", None)],
            "wrong authority": [("--root-certificates", str(theirs / "ca.crt"))],
        }
        for what, changes in cases.items():
            with node(made, 0, *changes) as process:
                assert process.wait(60) != 0, what
        state = json.loads(succeed(tmp_path, "deploy", "status", "federation", "--json").out)
        assert state["clients"] == {"0": "registered"}, state


def test_garbage_at_the_port_does_not_stop_the_server(tmp_path: Path) -> None:
    with federation(tmp_path, 2, minimum=2) as made:
        for data in (b"\x00" * 5000, b"GET / HTTP/1.1\r\n\r\n", os.urandom(100_000)):
            with socket.create_connection(("127.0.0.1", made.port)) as line:
                try:
                    line.sendall(data)
                except OSError:
                    continue
        outcome = made.run("run", **BASE, rounds=1)
        assert outcome.code == 0, outcome.err


class Wire(threading.Thread):
    """A relay between clients and server that can be cut."""

    def __init__(self, target: int) -> None:
        super().__init__(daemon=True)
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.cut = threading.Event()

    def run(self) -> None:
        """Take connections."""
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.cut.is_set():
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            self.open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
        except OSError:
            pass
        finally:
            for end in (one, other):
                end.close()

    def break_off(self) -> None:
        """Close everything, and let nothing through."""
        self.cut.set()
        for end in self.open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_cut_connection_is_taken_up_again(tmp_path: Path) -> None:
    with Deployment(tmp_path, 2, minimum=1, deadline=30) as made:
        made.server()
        made.client(0)
        line = Wire(made.port)
        line.start()
        says = made.folder / "clients/1/client.yaml"
        says.write_text(says.read_text().replace(f"server: 127.0.0.1:{made.port}", f"server: 127.0.0.1:{line.port}"))
        made.client(1)
        with playing(made, "run", **BASE, rounds=100) as run:
            until(lambda: rounds(made) >= 1, 120)
            line.break_off()
            until(lambda: 1 not in lines(tmp_path / "run")[-1]["participants"], 150)
            line.cut.clear()
            until(lambda: 1 in lines(tmp_path / "run")[-1]["participants"], 300)
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
        line.listener.close()


def test_bytes_are_what_flower_counts(tmp_path: Path) -> None:
    with federation(tmp_path, 2, minimum=2) as made:
        outcome = made.run("run", **DATA, method="fedavg", model="mlp", rounds=2, eval_every=2)
        assert outcome.code == 0, outcome.err
        (run,) = open_state(made.folder / "server/state.db").get_run_info()
    ours = json.loads((tmp_path / "run/result.json").read_text())
    assert run.bytes_sent + run.bytes_recv == pytest.approx(ours["bytes_up"] + ours["bytes_down"], rel=0.02)


def test_an_app_for_those_who_have_flower(tmp_path: Path) -> None:
    succeed(tmp_path, "flower-app", "app", "--method", "fedproto", "--clients", "2", "--rounds", "1")
    outcome = invoke(tmp_path, "flower-app", "app")
    assert (outcome.code, "exists" in outcome.err) == (2, True)
    built = subprocess.run(
        [tool("flwr"), "build", "--app", "app"],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(tmp_path.glob("*.fab"))
