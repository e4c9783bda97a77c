"""A federation in five commands, with real processes, TLS and keys."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.deploy import follow_run as follow
from protofed.deploy.client import federation_here
from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.federation_runs import experiment_of, undefended
from protofed.deploy.flower_app import write_app
from protofed.deploy.flower_client import owner_of
from protofed.deploy.follow_run import HOPELESS
from protofed.deploy.owner import Owner
from protofed.deploy.processes import Ask, alone, connect, interruptible, is_running, require_free, running
from protofed.deploy.server_settings import Settings, toml
from protofed.deploy.supervise import check_server
from protofed.deploy.warm_worker import OwnersWord, serve
from protofed.deploy.wire import read_frame
from protofed.errors import HopelessError, LostError, UserError
from protofed.experiment import Experiment
from tests.deploy.test_rounds import assert_same, sequential
from tests.support.command_line import everything_in, invoke, refused, succeed
from tests.support.federation_processes import alive, descendants, federation, until

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
        assert [len(pids) for pids in below.values()] == [0, 1, 1]  # a worker of each client
        started = [pid for process, pids in below.items() for pid in (process, *pids)]
    assert not made.listening()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    local = sequential(Experiment(**ASKED, clients=2, engine="sequential", device="cpu", threads=1))
    assert_same(tmp_path / "run", local)


def test_what_only_starts_processes_imports_no_torch() -> None:
    """A server and its clients wait for days, and a command is answered at once."""
    code = "import sys, protofed.cli, protofed.deploy.supervise, protofed.deploy.federation_runs; "
    code += "print({'torch', 'flwr'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    """Also with one that was killed, and could not stop it."""
    code = f"""
from pathlib import Path
from protofed.deploy.processes import running
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


SPAWNS = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True).wait()"
"""A process like Flower's SuperLink: its child is in a session of its own, and stays when it ends."""


def sleeper(process: int) -> int:
    until(lambda: [pid for pid in descendants(process) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"], 10)
    (found,) = descendants(process)
    return found


def test_a_process_is_stopped_with_those_in_other_sessions(tmp_path: Path) -> None:
    with running([sys.executable, "-c", SPAWNS], tmp_path, tmp_path / "log") as process:
        child = sleeper(process.pid)
    assert not alive(child)


def test_what_a_killed_one_left_is_stopped_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(["sleep", "60"], tmp_path, tmp_path / "other") as other:
        with running([sys.executable, "-c", SPAWNS], tmp_path, log) as process:
            child = sleeper(process.pid)
            process.kill()
            process.wait()
            assert alive(child)
            with alone(log):
                assert not alive(child)
        assert alive(other.pid)


def test_there_is_one_of_each(tmp_path: Path) -> None:
    assert not is_running(tmp_path / "log")
    with alone(tmp_path / "log"), pytest.raises(UserError, match="running already"), alone(tmp_path / "log"):
        pass
    with alone(tmp_path / "log"):
        assert is_running(tmp_path / "log")
    assert not is_running(tmp_path / "log")


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        succeed(tmp_path, "deploy", "init", "federation", "--clients", "1", "--port", str(port))
        outcome = invoke(tmp_path, "deploy", "server", "federation")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"error: invalid value '{port}' for port: it is in use on 127.0.0.1\n"
    with pytest.raises(UserError, match="no server can listen there"):
        require_free("203.0.113.1", port)


@pytest.mark.parametrize("how", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_interrupts_as_ctrl_c_does(how: signal.Signals) -> None:
    stopped = []

    def play() -> None:
        try:
            signal.raise_signal(how)
        finally:
            signal.raise_signal(signal.SIGHUP)  # while the run is being stopped
            stopped.append(True)

    with pytest.raises(KeyboardInterrupt), interruptible():
        play()
    assert stopped
    assert signal.getsignal(how) == signal.SIG_DFL


def test_what_nohup_has_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_init_makes_keys_that_only_their_owner_reads(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--host", "example.org")
    folder = tmp_path / "federation"
    secret = {"ca.key", "server.key", "key", "events.jsonl", "events.lock"}
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
    other = ("init", "other", "--clients", "2")
    (tmp_path / "good.yaml").write_text("method: fedproto\n")
    (tmp_path / "model.yaml").write_text("model: cnnn\n")
    (tmp_path / "data.yaml").write_text("dataset: digits+digit\n")
    for name in ("begun", "local"):  # one over a network, one not
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(Experiment("fedavg", clients=2, seed=7, device="cuda").to_yaml())
    (tmp_path / "begun/flower.json").write_text("{}")
    for words, why in (
        (("init", "other", "--clients", "-1"), "--clients"),
        (("init", "other", "--minimum", "0"), "--minimum"),
        (("init", "other", "--clients", "2", "--minimum", "3"), "--minimum"),
        (("init", "other", "--clients", "2", "--port", "70000"), "--port"),
        *(((*other, "--host", host), "--host") for host in ("", 65 * "a", "é.org", "bad host!", "a..b", "fe80::1%lo")),
        ((*other, "--deadline", "-5"), "--deadline"),
        ((*other, "--deadline", "inf"), "--deadline"),
        ((*other, "--wait", "nan"), "--wait"),
        (("init", "experiment.yaml", "--clients", "2"), "it is a file"),
        (("init", "experiment.yaml/below", "--clients", "2"), "it cannot be made"),
        (("server", "nowhere"), "federation.yaml"),
        (("client", "federation", "--id", "7"), "--id"),
        (("client", "federation", "--id", "1", "--data", "npz:none.npz"), "there is no none.npz"),
        (("client", "federation", "--id", "1", "--data", "none.npz"), "there is no none.npz"),
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
        assert why in refused(outcome), words
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "federation/server/apps").exists()  # nothing was submitted


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"images": np.full((20, 8, 8), np.nan)}, "sample 0 holds a number that is not finite"),
        ({"images": np.full((20, 8, 8), "a")}, "samples are <U1"),
        ({"labels": np.full(20, np.nan)}, "labels are float64"),
        ({"labels": np.full(20, -1)}, "must start at 0"),
        ({"labels": np.arange(20) * 10**6}, "no large gaps"),
        ({"labels": np.arange(19)}, "labels"),
        (None, "it has no pictures"),
    ],
)
@pytest.mark.parametrize("said", ["flag", "file"])
def test_a_worker_whose_data_is_not_usable_does_not_start(
    change: dict[str, Any] | None, why: str, said: str, tmp_path: Path
) -> None:
    """Whether --data or client.yaml names it; without `change` it is an empty folder."""
    path = tmp_path / ("data" if change is None else "data.npz")
    if change is None:
        path.mkdir()
    else:
        arrays: dict[str, Any] = {"images": np.zeros((20, 8, 8), np.uint8), "labels": np.arange(20) % 2}
        np.savez(path, **arrays | change)
    named = f"data: {'folder' if change is None else 'npz'}:{path}\n"
    (tmp_path / "client.yaml").write_text("id: 1\n" + (named if said == "file" else ""))
    answers = io.BytesIO()
    serve(OwnersWord(tmp_path / "client.yaml", str(path) if said == "flag" else None), io.BytesIO(), answers)
    answers.seek(0)
    head, _ = read_frame(answers)
    assert why in head["error"]
    assert answers.read() == b""


def test_the_owner_of_a_table_says_which_column_is_what(tmp_path: Path) -> None:
    """A server that names another label would be sent its values, as the names of classes."""
    lines = [f"{row},p{row},{'ny'[row // 5 % 2]}" for row in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["age,name,ill", *lines]))
    (tmp_path / "client.yaml").write_text(f"id: 0\ndata: {tmp_path}/t.csv\ncolumns: {{label: ill, drop: name}}\n")
    owner = Owner.read(tmp_path / "client.yaml").with_data(None)
    assert owner.data == f"csv:{tmp_path}/t.csv"
    experiment = Experiment(clients=1, split="iid")
    assert owner.objections(experiment) == []
    here = federation_here(experiment, owner)
    assert (here.classes, here.clients[0].train.x.shape[1]) == (("n", "y"), 1)
    (objection,) = owner.objections(dataclasses.replace(experiment, label="name"))
    assert objection == "label name: its own data is trained on whole"
    answers = io.BytesIO()
    serve(OwnersWord(tmp_path / "client.yaml", None), io.BytesIO(), answers)
    answers.seek(0)
    assert read_frame(answers)[0] == {"ready": True}


def test_a_client_whose_data_is_not_usable_does_not_start(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--port", "9")
    (tmp_path / "empty").mkdir()
    outcome = invoke(tmp_path, "deploy", "client", "federation", "--id", "1", "--data", "empty")
    assert "it has no pictures\nhint: pictures are " in refused(outcome)


@pytest.mark.parametrize(
    ("details", "kind", "said"),
    [
        ("0 of at least 2 clients came\nwithin 12 s", LostError, "0 of at least 2 clients came within 12 s"),
        (
            f"{HOPELESS}invalid value 'x' for --model: no hint: name another",
            HopelessError,
            "the run has failed: invalid value 'x' for --model: no\nhint: name another$",
        ),
    ],
)
def test_a_run_of_flowers_that_failed_says_why(
    details: str, kind: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {"status": "finished:failed", "status-details": f"ServerApp failed with exception: {details}"}

    @contextmanager
    def commands(_: Path) -> Iterator[Ask]:
        yield lambda *words: {"run-id": 5} if words[0] == "run" else {"runs": [failed]}

    monkeypatch.setattr(follow, "commands", commands)
    monkeypatch.setattr(follow, "ASK", 0.0)
    with pytest.raises(kind, match=said):
        follow.play(tmp_path, tmp_path / "app", tmp_path / "run", lambda _: None)


def test_a_run_without_a_server_says_so_and_how_to_go_on(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2")
    (tmp_path / "experiment.yaml").write_text("method: fedproto\n")
    outcome = invoke(tmp_path, "deploy", "run", "federation", "experiment.yaml", "--quiet")
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    assert "the server is not running: start it with `protofed deploy server " in outcome.err
    assert "continue with: protofed deploy run federation experiment.yaml --out " in outcome.err


@pytest.mark.parametrize(
    ("asked", "defence"),
    [
        ({}, "default"),
        ({"defence": "none"}, "none"),
        ({"defence": "median"}, "median"),
        ({"trusted": "0"}, "default"),
        ({"secure": True}, "none"),
        ({"privacy": "client", "clip": 1.0, "noise": 1.0}, "none"),
        ({"async_": 2}, "none"),
    ],
)
def test_the_default_defence_judges_what_strangers_send_unless_it_cannot(
    asked: dict[str, Any], defence: str, tmp_path: Path
) -> None:
    federation = FederationFolder(tmp_path / "federation")
    init(federation, 3)
    found = experiment_of(federation, {"method": "fedproto", **asked}, tmp_path / "run")
    assert (found.defence, found.clients) == (defence, 3)
    assert (undefended(asked) is None) == (defence == "default" or "defence" in asked)


def test_a_run_that_goes_on_keeps_its_defence(tmp_path: Path) -> None:
    federation = FederationFolder(tmp_path / "federation")
    init(federation, 3)
    out = tmp_path / "run"
    out.mkdir()
    (out / "flower.json").write_text("{}")
    (out / "config.yaml").write_text(Experiment(method="fedproto", clients=3).to_yaml())
    assert experiment_of(federation, {"method": "fedproto"}, out).defence == "none"


def test_what_init_could_not_finish_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("protofed.deploy.federation.certify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        init(FederationFolder(tmp_path / "federation"), 2)
    assert not list(tmp_path.iterdir())


def test_an_address_with_colons_has_brackets(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "1", "--host", "::1")
    assert "server: '[::1]:9092'\n" in (tmp_path / "federation/clients/0/client.yaml").read_text()
    assert Owner.read(tmp_path / "federation/clients/0/client.yaml").server == "[::1]:9092"
    assert FederationFolder.open(tmp_path / "federation").address == "[::1]:9092"


def test_status_without_a_server_says_so(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "2", "--port", "9")
    outcome = invoke(tmp_path, "deploy", "status", "federation")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out == "server at 127.0.0.1:9: not running\nclient 0: registered\nclient 1: registered\n"
    assert [path.name for path in tmp_path.iterdir()] == ["federation"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("host: 3\n", "'3' for host in "),
        ("port: three\n", "'three' for port in "),
        ("prot: 9\n", "did you mean 'port'"),
        ("folder: /\n", "'folder'"),
    ],
)
def test_a_federation_that_is_none_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "federation.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"(?s)(?=.*federation\.yaml).*{message}"):
        FederationFolder.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: here\n", "missing value for id in "),
        ("id: 1\nmegabytes: many\n", "'many' for megabytes"),
        ("id: 1\nmethods: 5\n", "'5' for methods"),
        ("id: 1\nsend: [1]\n", r"'\[1\]' for send"),
        ("id: 1\nmethod: fedavg\n", "did you mean 'methods'"),
        ("id: 1\nturns: many\n", "'many' for turns"),
        ("id: 1\nturns: 0\n", "'0' for turns .* 1 or more"),
        ("id: 1\nmin_batch: -3\n", "'-3' for min_batch"),
        ("id: -1\n", "'-1' for id"),
        ("id: 1\nclip: 0\n", "'0' for clip .* above 0"),
        ("id: 1\nnoise: 1\n", "'1' for noise .* clip, which must be given too"),
        ("id: 1\nsimulated: true\n", "'simulated'"),
        ("id: 1\nsend: [everything]\n", "'everything' for send"),
        ("id: 1\ndata: 5\n", "'5' for data"),
        ("id: 1\ncolumns: {labels: a}\n", "'labels' for columns .*it must be one of"),
        ("id: 1\ncolumns: {label: 5}\n", "for columns"),
        ("id: 1\ndata: none.npz\n", "for data .*there is no none.npz"),
        ("id: 1\ndata: digit\n", "did you mean 'digits'"),
    ],
)
def test_an_owner_who_says_what_cannot_be_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "client.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"(?s)(?=.*client\.yaml).*{message}"):
        owner_of({"client": str(tmp_path / "client.yaml")})
    if "data: " not in text:  # which the worker reads
        outcome = invoke(tmp_path, "deploy", "client", ".", "--id", "1")
        assert re.search(message, refused(outcome))


@pytest.mark.parametrize(
    "text",
    [
        "id: 1\n",
        "id: 1\nserver: here\n",
        "id: 1\nserver: here:port\n",
        "id: 1\nserver: here:70000\n",
        "id: 1\nserver: 7\n",
    ],
)
def test_a_client_that_does_not_know_its_server_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "client.yaml").write_text(text)
    outcome = invoke(tmp_path, "deploy", "client", ".", "--id", "1")
    assert re.search(r" for server in \S*client\.yaml: ", refused(outcome))


@contextmanager
def greeter(folder: Path) -> Iterator[int]:
    """The port of somebody who has the certificate of a federation's server."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server/server.pem", folder / "server/server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    with near, suppress(OSError):
                        context.wrap_socket(near, server_side=True).close()

        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_server_of_another_federation_is_named_at_once(tmp_path: Path) -> None:
    succeed(tmp_path, "deploy", "init", "other", "--clients", "1")
    theirs = tmp_path / "other/clients/0/ca.crt"
    with greeter(tmp_path / "other") as port:
        succeed(tmp_path, "deploy", "init", "federation", "--clients", "1", "--port", str(port))
        outcome = invoke(tmp_path, "deploy", "client", "federation", "--id", "0")
        check_server(f"127.0.0.1:{port}", theirs)  # no error
    check_server(f"127.0.0.1:{port}", theirs)  # nobody is there yet
    assert (outcome.code, outcome.out) == (2, "")
    assert "its certificate is not of this federation" in outcome.err


@pytest.mark.parametrize("name", ["ca.crt", "key"])
def test_a_client_without_its_keys_is_refused_at_once(tmp_path: Path, name: str) -> None:
    succeed(tmp_path, "deploy", "init", "federation", "--clients", "1", "--port", "9")
    path = tmp_path / "federation/clients/0" / name
    path.write_text("junk")
    for _ in range(2):
        outcome = invoke(tmp_path, "deploy", "client", "federation", "--id", "0")
        assert f"{path}' for " in refused(outcome)
        path.unlink(missing_ok=True)


ODD = 'O\'Neil "x" \\ é = #1\n\x7f'
"""What a folder may be called."""


def test_folders_may_be_called_anything(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    write_app(tmp_path / "app", Experiment(method=f"{ODD}.py:Mine"), Settings(out=ODD))
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["out"] == ODD
    assert ODD in project["project"]["description"]
    connect(tmp_path, "127.0.0.1:1", tmp_path / ODD)
    said = tomllib.loads((tmp_path / "config.toml").read_text())
    assert said["superlink"]["protofed"]["root-certificates"] == str(tmp_path / ODD)
    assert parse_config_args([f"client={toml(ODD)} data={toml(ODD)}"]) == {"client": ODD, "data": ODD}


def test_data_is_a_path_or_a_name_wherever_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.npz").touch()
    (tmp_path / "images").mkdir()
    (tmp_path / "digits").mkdir()  # does not hide the dataset
    for said, meant in (
        (f"{tmp_path}/site.npz", f"npz:{tmp_path}/site.npz"),
        ("npz:site.npz", f"npz:{tmp_path}/site.npz"),
        ("images", f"folder:{tmp_path}/images"),
        ("./digits", f"folder:{tmp_path}/digits"),
        ("digits", "digits"),
    ):
        path = tmp_path / "client.yaml"
        path.write_text(f"id: 1\ndata: {said}\n")
        assert owner_of({"client": str(path)}).data == meant
        path.write_text("id: 1\n")
        assert owner_of({"client": str(path), "data": said}).data == meant
