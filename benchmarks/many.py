"""python -m benchmarks.many: what one server takes of hundreds and thousands of clients, waiting and in a round.

The server's processes are real, over TLS and keys. Clients are real connections, hundreds in a process, of which one
trains; the others send its answer under their own numbers, so that a machine can hold them. What is reported is
processor seconds and memory of the server's two processes, which hardly depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.marked import write_part
from benchmarks.network import MODEL, Federation, Watch

BEGIN, END = "<!-- begin: written by python -m benchmarks.many -->", "<!-- end: many -->"
IN_A_PROCESS = 250
"""Clients."""
SMALL = 100_000
"""Bytes of an upload that is of prototypes."""
ROUNDS = 4
IDLE = 60
"""Seconds for which clients wait, after as many in which they look for work ever less often."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, save, and write the tables into a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.0, 1.0], help="of a model; 0 sends prototypes")
    parser.add_argument("--out", type=Path, default=Path("runs/many.json"), help="what it holds is kept")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    parser.add_argument("--play", nargs=3, metavar=("FOLDER", "FIRST", "NUMBER"), help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.play:
        return play_many(Path(asked.play[0]), int(asked.play[1]), int(asked.play[2]))
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    for clients in asked.clients:
        for megabytes in asked.megabytes:
            name = f"{clients} clients, {megabytes:g} MB"
            if name not in found:
                found[name] = measure(clients, megabytes)
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(found[name]), flush=True)
    if asked.page is not None:
        write_part(asked.page, table(found), BEGIN, END)
    return 0


def table(found: Mapping[str, Any]) -> str:
    """A line a measurement."""
    lines = [
        "| clients | a client sends | waiting: part of a core | a round: CPU s of `deploy server` "
        "| CPU s of `deploy run` | CPU ms a client | server, MB | run, MB | state.db, MB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found.values():
        server, run = row["cpu"]["deploy server"], row["cpu"]["deploy run"]
        sent = "prototypes" if row["megabytes"] == 0 else f"a model, {row['megabytes']:g} MB"
        each = f"{1000 * (server + run) / row['clients']:.0f}"
        memory = [f"{row['memory'][kind] / 1e6:.0f}" for kind in ("deploy server", "deploy run")]
        cells = [str(row["clients"]), sent, f"{row['idle']:.2f}", f"{server:.1f}", f"{run:.1f}", each, *memory]
        lines.append(f"| {' | '.join(cells)} | {row['database'] / 1e6:.0f} |")
    return "\n".join(lines)


def measure(clients: int, megabytes: float) -> dict[str, Any]:
    """What the server's processes take while clients wait, and in a round of all of them."""
    with tempfile.TemporaryDirectory(prefix="protofed-") as place, Watch(Path(place).resolve()) as watch:
        folder = Path(place).resolve()
        model = f"{folder / 'heavy.py'}:Heavy"
        (folder / "heavy.py").write_text(MODEL.format(numbers=max(1, round(megabytes * 1e6 / 4))), encoding="utf-8")
        method = "fedavg" if megabytes else "fedproto"
        experiment = {"method": method, "model": model, "rounds": ROUNDS, "eval_every": ROUNDS, "lr": 1e-4}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (40, 8, 8), dtype=np.uint8)
        np.savez(folder / "mine.npz", images=images, labels=np.arange(40) % 4)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        here = Federation(folder, None)
        settings = ("--minimum", str(clients), "--deadline", "1800", "--wait", "1800")
        here.do("init", "F", "--clients", str(clients), "--port", port, *settings)
        for number in range(0, clients, IN_A_PROCESS):  # of which one trains
            with (folder / f"F/clients/{number}/client.yaml").open("a", encoding="utf-8") as file:
                file.write(yaml.safe_dump({"data": str(folder / "mine.npz"), "methods": [method, model]}))
        with here.running("server", "F"), connections(folder, clients):
            time.sleep(IDLE)
            before = watch.cpu["deploy server"]
            time.sleep(IDLE)
            idle = (watch.cpu["deploy server"] - before) / IDLE
            used = dict(watch.cpu)
            here.do("run", "F", "experiment.yaml", "--out", "run", "--quiet")
            cpu = {kind: (watch.cpu[kind] - used.get(kind, 0.0)) / ROUNDS for kind in ("deploy server", "deploy run")}
            database = sum(path.stat().st_size for path in (folder / "F/server").glob("state.db*"))
        lines = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text("utf-8").splitlines()]
        assert all(len(line["participants"]) == clients for line in lines)
    about = {"clients": clients, "megabytes": megabytes, "rounds": ROUNDS}
    return {**about, "idle": idle, "cpu": cpu, "memory": dict(watch.most), "database": database}


@contextmanager
def connections(folder: Path, clients: int) -> Iterator[None]:
    """All clients, connected, in a few processes."""
    started = []
    try:
        for first in range(0, clients, IN_A_PROCESS):
            number = min(IN_A_PROCESS, clients - first)
            command = [sys.executable, "-m", "benchmarks.many", "--play", str(folder), str(first), str(number)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n"
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGINT)
        for process in started:
            process.communicate(timeout=120)


class Shared:
    """What stands for the worker of many clients: the first one's, whose answer is given under each one's number."""

    def __init__(self, folder: Path, first: int) -> None:
        from protofed.deploy.client import WarmClient
        from protofed.deploy.owner import Owner

        self.first = first
        self.client = WarmClient(Owner.read(folder / f"F/clients/{first}/client.yaml").with_data(None))
        self.lock = threading.Lock()
        self.answers: dict[tuple[str, str], Any] = {}

    def answer(self, number: int, kind: str, packet: Any) -> Any:
        """The answer of one client."""
        from protofed.deploy.wire import seal

        facts = json.loads(packet.text)
        named = (kind, json.dumps([facts.get("run"), facts.get("clock"), facts.get("test")]))
        with self.lock:
            if named not in self.answers:
                self.answers = {named: self.client.answer(kind, packet)}
            found = self.answers[named]
        return seal(json.dumps({**json.loads(found.text), "id": number}), another(found.data, number))


def another(data: bytes, number: int) -> bytes:
    """A model with one other weight: Flower sends and stores equal parts once."""
    middle = len(data) // 8 * 4
    return data if len(data) < SMALL else data[:middle] + struct.pack("<f", number / 1e6) + data[middle + 4 :]


class OneOf:
    """A client's part of it, in the place of a worker process."""

    def __init__(self, shared: Shared, number: int) -> None:
        self.shared, self.number = shared, number

    def answer(self, kind: str, packet: Any, _: float) -> Any:
        """As that of a process."""
        return self.shared.answer(self.number, kind, packet)


def play_many(folder: Path, first: int, number: int) -> int:
    """Be so many clients until told to end."""
    from protofed.deploy.node import Line, play

    shared, told, ready = Shared(folder, first), list[int](), threading.Semaphore(0)
    signal.signal(signal.SIGINT, lambda *_: told.append(signal.SIGINT))
    address = str(yaml.safe_load((folder / f"F/clients/{first}/client.yaml").read_text("utf-8"))["server"])

    def be(who: int) -> None:
        place = folder / f"F/clients/{who}"
        line = Line(address, place / "ca.crt", place / "key", 10**9, who)
        play(line, OneOf(shared, who), told, ready.release)  # type: ignore[arg-type]

    threads = [threading.Thread(target=be, args=(who,)) for who in range(first, first + number)]
    for thread in threads:
        thread.start()
    for _ in threads:
        ready.acquire()
    print("connected", flush=True)
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
