"""Strangers and hostile servers against real processes: nobody runs code in a federation, and owners' limits hold."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protofed.data import load
from protofed.deploy.exchange import Answers, Question, exchange
from protofed.deploy.link import new_run as link_run
from protofed.deploy.link import open_state
from protofed.deploy.pki import read_client_key
from protofed.deploy.processes import connect, environment, tool
from protofed.deploy.wire import Packet, pack
from protofed.experiment import Experiment
from protofed.messages import Upload
from protofed.runs.run import new_run
from tests.deploy.test_network import BASE, Wire
from tests.docs.test_tutorials import patients
from tests.support.command_line import invoke
from tests.support.federation_processes import Deployment, descendants, federation, protofed, until

pytestmark = pytest.mark.network

STAMP = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z"
"""The beginning of a line that a client says."""
STRANGE = """
from pathlib import Path
Path("{mark}").write_text("was here")
from flwr.{kind}app import {name}
app = {name}()
"""
PROJECT = """
[project]
name = "strange"
version = "1.0.0"
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "strange.server:app"
clientapp = "strange.client:app"
[tool.flwr.app.config]
"""


def strange_app(place: Path) -> Path:
    """An app that leaves a mark wherever it is imported."""
    app = place / "strange-app"
    (app / "strange").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "strange/__init__.py").write_text("")
    for kind, name in (("server", "ServerApp"), ("client", "ClientApp")):
        code = STRANGE.format(mark=place / f"mark-{kind}", kind=kind, name=name)
        (app / f"strange/{kind}.py").write_text(code)
    return app


def flwr(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Flower's own command, as anybody has it."""
    return subprocess.run(
        [tool("flwr"), *words], env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("way", ["ca.crt", "proxy"])
def test_a_strangers_app_runs_nowhere(way: str, tmp_path: Path) -> None:
    """With the certificate that everybody has, at the port and through a proxy on the server's machine."""
    app = strange_app(tmp_path)
    with federation(tmp_path, 2, minimum=2) as made:
        line = Wire(made.port)
        line.start()
        home = tmp_path / "stranger"
        port = made.port if way == "ca.crt" else line.port
        connect(home, f"127.0.0.1:{port}", made.folder / "clients/0/ca.crt")
        for words in (
            ("run", str(app), "protofed"),
            ("list", "protofed"),
            ("supernode", "list", "protofed"),
            ("supernode", "register", str(made.folder / "server/keys/0.pub"), "protofed"),
        ):
            ended = flwr(home, *words)
            assert ended.returncode != 0, ended.stdout
        time.sleep(5)  # a client looks for work every three seconds at least
        outcome = made.run("run", **BASE, rounds=1)
        assert outcome.code == 0, outcome.err
        state = json.loads(invoke(tmp_path, "deploy", "status", "federation", "--json").out)
        assert len(state["runs"]) == 1
        line.listener.close()
    assert not list(tmp_path.glob("mark-*"))


def test_flowers_own_server_runs_the_strangers_app(tmp_path: Path) -> None:
    """The attack itself works: what Flower's SuperLink does with the same app, so that the tests above can fail."""
    app = strange_app(tmp_path)
    home, port = tmp_path / "home", Deployment(tmp_path, 1).port
    connect(home, f"127.0.0.1:{port}", None)
    link = [tool("flower-superlink"), "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    with started([*link, "--disable-runtime-dependency-installation"], home):
        until(lambda: flwr(home, "run", str(app), "protofed").returncode == 0, 60)
        until((tmp_path / "mark-server").exists, 60)


@contextmanager
def started(command: list[str], home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Flower's, ended with all that it started."""
    process = subprocess.Popen(
        command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def test_a_clients_own_key_opens_nothing_else(tmp_path: Path) -> None:
    """Signed as its own calls are, whatever Flower's control and runtime answer; and a node with Flower's client."""
    from fastapi.routing import APIRoute, iter_route_contexts
    from flwr.superlink.main import create_app

    with federation(tmp_path, 1) as made:
        place = made.folder / "clients/0"
        key: Any = load_ssh_private_key((place / "key").read_bytes(), None)
        signer = NodeAuthHttpInterceptor(key, key.public_key())
        contexts = iter_route_contexts(create_app().routes)
        paths = sorted({context.route.path for context in contexts if isinstance(context.route, APIRoute)})
        with httpx.Client(verify=str(place / "ca.crt"), base_url=f"https://127.0.0.1:{made.port}") as client:
            for path in paths:
                if not path.startswith("/v1/fleet/") or path.endswith(("fab", "run", "/register-node")):
                    context: Any = type("Context", (), {"request": client.build_request("POST", path, content=b"")})
                    answer = signer.intercept(context, lambda asked: client.send(asked.request))
                    assert answer.status_code == 404, path
        app, home = strange_app(tmp_path), tmp_path / "home"
        connect(home, f"127.0.0.1:{made.port}", place / "ca.crt")
        assert flwr(home, "run", str(app), "protofed").returncode != 0
    assert not list(tmp_path.glob("mark-*"))


def test_a_server_that_sends_an_app_is_not_run_at_a_client(tmp_path: Path) -> None:
    """A client of ours at Flower's own SuperLink, which has a stranger's run: it neither fetches nor runs the app."""
    app = strange_app(tmp_path)
    made = Deployment(tmp_path, 1)
    server, home = made.folder / "server", tmp_path / "home"
    connect(home, f"127.0.0.1:{made.port}", server / "ca.crt")
    command = [tool("flower-superlink"), "--enable-supernode-auth", "--disable-runtime-dependency-installation"]
    command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    command += ["--ssl-keyfile", str(server / "server.key"), "--host", "127.0.0.1", "--port", str(made.port)]
    (app / "strange/server.py").write_text(ASKS.format(mark=tmp_path / "mark-answer"))
    with started(command, home):
        until(made.listening, 60)
        key, public = tmp_path / "0.pub", read_client_key(made.folder / "clients/0/key").public_key()
        key.write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
        until(lambda: flwr(home, "supernode", "register", str(key), "protofed").returncode == 0, 60)
        with made:
            made.client(0)
            assert flwr(home, "run", str(app), "protofed").returncode == 0
            until((tmp_path / "mark-answer").exists, 60)
    assert not (tmp_path / "mark-client").exists()
    said = json.loads((tmp_path / "mark-answer").read_text())
    assert said == [101, "it is not a message"]


ASKS = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    (number,) = grid.push_messages([Message(RecordDict(), nodes[0], "train")])
    while not (answers := list(grid.pull_messages([number]))):
        time.sleep(0.2)
    Path("{mark}").write_text(json.dumps([answers[0].error.code, answers[0].error.reason]))
"""


ASKED = Experiment("fedavg", dataset="digits", train_size=200, clients=1, rounds=3, model="mlp", split="iid")


class Hostile:
    """A server that sends what it likes to the clients of a federation, with all that a server has."""

    def __init__(self, made: Deployment) -> None:
        self.made, self.state = made, open_state(made.folder / "server/state.db")

    def ask(self, experiment: Experiment, number: int = 0, run: str = "a", kind: str = "train") -> str | Packet:
        """The client's answer, or why there is none."""
        facts = {"run": run, "experiment": asdict(experiment), "clock": [number, [0]]}
        facts |= {"classes": [str(digit) for digit in range(10)], "domains": ["digits"]}
        packet = pack(facts, new_run(replace(ASKED, device="cpu")).broadcast)
        with link_run(self.state, lambda: None) as grid:
            until(grid.get_node_ids, 30)
            (node,) = grid.get_node_ids()
            found: Answers[Packet] = exchange(grid, {node: Question(kind, packet)}, "1", 60.0, lambda _, got: got)
        return found.given[node] if found.given else found.left_out[node]


def test_the_five_ways_past_client_yaml_are_refused(tmp_path: Path) -> None:
    """Of a real client; each is said in one line on both sides, and recorded."""
    with Deployment(tmp_path, 1, min_batch=8) as made:
        made.server()
        path = made.folder / "clients/0/client.yaml"
        path.write_text(path.read_text() + "turns: 3\nmethods: [fedavg]\nmin_count: 5\nmin_samples: 50\n")
        made.client(0)
        server, asked = Hostile(made), replace(ASKED, min_count=5)
        long, file = replace(asked, rounds=600, participation=0.5), str(tmp_path / "any.npz")
        paths: list[dict[str, Any]] = [
            *({"dataset": name} for name in (f"folder:{tmp_path}", f"npz:{file}", f"digits+csv:{file}")),
            *({"public": f"folder:{tmp_path}"}, {"split": f"indices:{file}"}),
        ]
        elsewhere: list[dict[str, Any]] = [{"start": file}, {"encoder": file}]
        for number in (0, 1, 2):
            answer = server.ask(long, number)
            assert isinstance(answer, Packet), answer
            assert Upload.decode(answer.data).weights
        expected = {
            "another turn": [server.ask(long, number) for number in (3, 500)],
            "path": [server.ask(replace(asked, **named), run="b") for named in paths],
            "not over a network": [server.ask(replace(asked, **named), run="b") for named in elsewhere],
            "another experiment": [server.ask(replace(long, lr=1.0), 0), server.ask(replace(long, train_size=9), 0)],
            "samples": [server.ask(replace(asked, train_size=1), run="c")],
            "batch_size 1": [server.ask(replace(asked, train_size=1, batch_size=1), run="d")],
            "the last batch of an epoch would have 4 samples": [server.ask(replace(asked, train_size=196), run="j")],
            "min_count 0": [server.ask(replace(asked, min_count=0), run="e")],
            "plain name": [server.ask(asked, run="../../f")],
        }
        for why, answers in expected.items():
            for answer in answers:
                assert isinstance(answer, str), why
                assert answer.startswith("it refuses: ")
                assert why in answer
        there = replace(asked, dataset="heart-disease", data_dir=str(tmp_path / "theirs"), model="mlp", train_size=None)
        patients(tmp_path / "theirs")
        assert len(load("heart-disease", tmp_path / "theirs").train) > 50  # which nobody looks at
        answer = server.ask(there, run="i", kind="query.hello")
        assert isinstance(answer, str)
        assert answer.startswith("error 102: ")
        assert answer.endswith(": not found")
        assert str(tmp_path) not in answer
        told = made.stop("client-0")
        lines = list(map(json.loads, (made.folder / "clients/0/events.jsonl").read_text().splitlines()))
    reasons = [answer.removeprefix("it refuses: ") for answers in expected.values() for answer in map(str, answers)]
    assert [line["refused"] for line in lines if "refused" in line] == reasons
    for why in reasons:
        assert f"refused: {why}" in told


def test_a_server_that_sends_nonsense_ends_no_client(tmp_path: Path) -> None:
    """An error in place of a message, other records, and more than the owner allows: the node itself stands between."""
    with Deployment(tmp_path, 1) as made:
        made.server()
        path = made.folder / "clients/0/client.yaml"
        path.write_text(path.read_text() + "megabytes: 3\n")
        made.client(0)
        server = Hostile(made)
        with link_run(server.state, lambda: None) as grid:
            until(grid.get_node_ids, 30)
            (node,) = grid.get_node_ids()
            for content, why in (
                (RecordDict(), "it is not a message"),
                (RecordDict({"facts": ConfigRecord({"json": "[" * 9999, "digest": b""})}), "it is not a message"),
                (RecordDict({"a": ConfigRecord({"x": bytes(8_000_000)})}), "a message of more than 3 MB"),
            ):
                (number,) = grid.push_messages([Message(content, node, "train", ttl=60.0)])
                found: list[Message] = []
                until(lambda number=number, found=found: found.extend(grid.pull_messages([number])) or found, 30)
                assert (found[0].error.code, found[0].error.reason) == (101, why)
        assert isinstance(server.ask(ASKED), Packet)


def test_invented_runs_do_not_fill_the_disk(tmp_path: Path) -> None:
    with Deployment(tmp_path, 1) as made:
        made.server()
        path = made.folder / "clients/0/client.yaml"
        path.write_text(path.read_text() + "disk_megabytes: 4\n")
        made.client(0)
        server = Hostile(made)
        answers = [server.ask(ASKED, run=f"run{number}") for number in range(8)]
        kept = sum(file.stat().st_size for file in (made.folder / "clients/0/memory").rglob("*") if file.is_file())
    assert [isinstance(answer, Packet) for answer in answers][:2] == [True, True]
    assert "room" in str(answers[-1])
    assert kept < 9e6  # two runs: of each a model, and what the client was sent last


def test_reasons_are_named(tmp_path: Path) -> None:
    """An unregistered key, the same key twice, a server that is not there, and "is running" when it is."""
    (tmp_path / "other").mkdir()
    other = Deployment(tmp_path / "other", 1)
    with Deployment(tmp_path, 1) as made:
        early = protofed("deploy", "client", "federation", "--id", "0", place=tmp_path)
        assert early.stdout is not None
        why = "not connected: no server listens there; is it started?; trying again"
        assert re.fullmatch(f"{STAMP} client 0: {re.escape(why)}\n", early.stdout.readline())
        made.server()
        assert re.fullmatch(f"{STAMP} client 0: running\n", early.stdout.readline())
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", made.folder / "clients/0", copy], check=True)
        twice = protofed("deploy", "client", "copy", "--id", "0", place=tmp_path)
        assert twice.stdout is not None
        why = "not connected: a client with the same key is connected, or was until a minute ago; trying again"
        assert twice.stdout.readline().endswith(f"Z client 0: {why}\n")
        twice.send_signal(signal.SIGINT)
        assert twice.wait(30) == 0
        for name in ("key", "client.crt"):
            (copy / name).write_bytes((other.folder / "clients/0" / name).read_bytes())
        outcome = invoke(tmp_path, "deploy", "client", "copy", "--id", "0")
        assert (outcome.code, outcome.err) == (1, "error: not connected: its key is not registered\n")
        early.send_signal(signal.SIGINT)
        assert early.wait(30) == 0


def expire(path: Path, authority: Path, key: Path, passphrase: str) -> None:
    """Replace a certificate by one that ended yesterday."""
    old = x509.load_pem_x509_certificate(path.read_bytes())
    signer: Any = load_pem_private_key(key.read_bytes(), passphrase.encode())
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(issuer.subject)
    builder = builder.public_key(old.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=9))
    builder = builder.not_valid_after(now - datetime.timedelta(days=1))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    path.write_bytes(builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))


def test_an_expired_certificate_is_named_on_both_sides(tmp_path: Path) -> None:
    said = invoke(tmp_path, "deploy", "init", "federation", "--clients", "1", "--port", "18777").out
    passphrase = said.split()[-1]
    server = tmp_path / "federation/server"
    expire(server / "server.pem", server / "ca.crt", server / "ca.key", passphrase)
    outcome = invoke(tmp_path, "deploy", "server", "federation")
    assert outcome.code == 2
    assert re.search(r"server\.pem' for FILE: it expired on [0-9-]+, and no client accepts it any longer", outcome.err)
    code = "from protofed.deploy import supervise; supervise._check_certificate = lambda _: None; "
    code += "from pathlib import Path; from protofed.deploy.federation import FederationFolder; "
    code += "supervise.serve(FederationFolder.open(Path('federation')), lambda: print('up', flush=True))"
    careless = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert careless.stdout is not None
        assert careless.stdout.readline() == "up\n"
        outcome = invoke(tmp_path, "deploy", "client", "federation", "--id", "0")
        assert outcome.code == 2
        assert "its certificate has expired: it must be renewed at the server" in outcome.err
    finally:
        careless.send_signal(signal.SIGINT)
        careless.wait(30)


def test_the_authoritys_key_is_of_no_use_without_its_passphrase(tmp_path: Path) -> None:
    said = invoke(tmp_path, "deploy", "init", "federation", "--clients", "1").out
    key = (tmp_path / "federation/server/ca.key").read_bytes()
    with pytest.raises(TypeError, match="encrypted"):
        load_pem_private_key(key, None)
    load_pem_private_key(key, said.split()[-1].encode())
    everything = b"".join(path.read_bytes() for path in (tmp_path / "federation").rglob("*") if path.is_file())
    assert said.split()[-1].encode() not in everything
