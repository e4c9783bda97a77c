"""python -m benchmarks.network: what a federation over TLS costs besides training, and what its processes take.

Clients hold almost no images, so a round is all overhead: finding work, carrying messages, keeping models. FedAvg
sends the whole model both ways; its size is that of a message. Everything runs on this machine, over loopback. With
`--versus SRC`, the sources of another version, both are measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

MODEL = """\
import torch
from torch import nn

class Ballast(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn({numbers}))

    def forward(self, x):
        return x + 1e-6 * self.weight.mean()

class Heavy(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(Ballast(), nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))
"""
"""A model of any size that costs next to nothing to train and test; random, because Flower sends equal parts once."""
BEGIN, END = "<!-- begin: written by python -m benchmarks.network -->", "<!-- end: network -->"
KINDS = {
    "flower-superlink": "SuperLink",
    "flower-superexec": "SuperExec",
    "flwr-serverapp": "server's app",
    "deploy/supernode.py": "SuperNode",
    "flwr-clientapp": "client's app",
    "protofed.deploy.warm_worker": "worker",
    "deploy server": "deploy server",
    "deploy client": "deploy client",
    "deploy run": "deploy run",
}
"""Processes by what their command lines hold."""
TICK = os.sysconf("SC_CLK_TCK")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, save, and write the tables into a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 40.0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--versus", type=Path, metavar="SRC", help="sources of another version, measured beside")
    parser.add_argument("--out", type=Path, default=Path("runs/network.json"), help="what it holds is kept")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args(words)
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    ways = {"now": None} if asked.versus is None else {"before": asked.versus.resolve(), "now": None}
    for megabytes in asked.megabytes:
        for clients in asked.clients:
            for way, source in ways.items():
                name = f"{way}, {clients} clients, {megabytes:g} MB"
                if name not in found:
                    found[name] = {"way": way, **measure(clients, megabytes, asked.rounds, source)}
                    asked.out.parent.mkdir(parents=True, exist_ok=True)
                    asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                print(name, json.dumps(found[name]), flush=True)
    if asked.page is not None:
        head, _, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN)
        text = f"{table(found)}\n\n{processes(found)}"
        asked.page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def table(found: Mapping[str, Any]) -> str:
    """A line a measurement: seconds of a round."""
    lines = [
        "| version | clients | message | seconds per round | with a test | times |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in found.values():
        plain, tested = row["seconds"], row["with_test"]
        cells = [row["way"], str(row["clients"]), f"{row['megabytes']:g} MB", f"{plain:.2f}", f"{tested:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {tested / plain:.2f} |")
    return "\n".join(lines)


def processes(found: Mapping[str, Any]) -> str:
    """A line a kind of process: what it takes."""
    lines = ["| version | clients | message | process | CPU seconds per round | MB |", "|---|---:|---:|---|---:|---:|"]
    for row in found.values():
        for kind in (kind for kind in KINDS.values() if kind in row["memory"]):
            cells = [row["way"], str(row["clients"]), f"{row['megabytes']:g} MB", kind]
            cells += [f"{row['cpu'].get(kind, 0):.2f}", f"{row['memory'][kind] / 1e6:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(clients: int, megabytes: float, rounds: int, source: Path | None) -> dict[str, Any]:
    """The median round of a federation with and without a test, and what each kind of process takes."""
    with tempfile.TemporaryDirectory(prefix="protofed-") as place, Watch() as watch:
        folder = Path(place)
        model = f"{folder / 'heavy.py'}:Heavy"
        (folder / "heavy.py").write_text(MODEL.format(numbers=round(megabytes * 1e6 / 4)), encoding="utf-8")
        experiment = {"method": "fedavg", "dataset": "digits", "train_size": 20 * clients, "split": "iid"}
        experiment |= {"model": model, "rounds": rounds, "lr": 0.0001}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        here = Federation(folder, source)
        here.do("init", "F", "--clients", str(clients), "--port", port, "--minimum", str(clients))
        for number in range(clients):
            with (folder / f"F/clients/{number}/client.yaml").open("a", encoding="utf-8") as file:
                file.write(yaml.safe_dump({"methods": ["fedavg", model], "threads": 1}))
        seconds = {}
        with here.running("server", "F"), here.clients(clients):
            for name, every in (("seconds", rounds), ("with_test", 1)):
                path = folder / f"{name}.yaml"
                path.write_text(yaml.safe_dump(experiment | {"eval_every": every}), encoding="utf-8")
                before = dict(watch.cpu)
                here.do("run", "F", path.name, "--out", name, "--quiet")
                lines = [json.loads(line) for line in (folder / name / "rounds.jsonl").read_text("utf-8").splitlines()]
                # the first round meets the clients, the last tests the models
                seconds[name] = statistics.median(line["seconds"] for line in lines[1:-1])
                if name == "seconds":
                    cpu = {kind: (used - before.get(kind, 0.0)) / rounds for kind, used in watch.cpu.items()}
    about = {"clients": clients, "megabytes": megabytes, "rounds": rounds}
    return {**about, **seconds, "cpu": cpu, "memory": dict(watch.most)}


class Watch(threading.Thread):
    """Looks at all processes of a federation: the most memory of one of each kind, the CPU seconds of all.

    Args:
        place: only of those that work in this folder, unless it is None.
    """

    def __init__(self, place: Path | None = None) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.most: dict[str, int] = {}
        self.used: dict[tuple[str, int], float] = {}
        self.over = threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()

    @property
    def cpu(self) -> dict[str, float]:
        """Seconds so far, by kind."""
        found: dict[str, float] = defaultdict(float)
        for (kind, _), seconds in list(self.used.items()):
            found[kind] += seconds
        return dict(found)

    def run(self) -> None:
        """Until told to end."""
        while not self.over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    kind = next((name for word, name in KINDS.items() if word in line), None)
                    if kind is not None and self.place in (None, (path / "cwd").readlink()):
                        status = (path / "status").read_text("utf-8")
                        peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
                        self.most[kind] = max(self.most.get(kind, 0), peak)
                        times = (path / "stat").read_text("utf-8").rpartition(")")[2].split()
                        self.used[kind, int(path.name)] = (int(times[11]) + int(times[12])) / TICK
                except (OSError, IndexError, ValueError):
                    continue


class Federation:
    """`protofed deploy` in a folder, by the sources of a version."""

    def __init__(self, place: Path, source: Path | None) -> None:
        more = {} if source is None else {"PYTHONPATH": str(source)}
        self.place, self.environment = place, {**os.environ, "OMP_NUM_THREADS": "1", **more}

    def do(self, *words: str) -> None:
        """A command, to its end."""
        command = [sys.executable, "-m", "protofed", "deploy", *words]
        subprocess.run(command, cwd=self.place, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        """A server or a client, from when it says that it runs."""
        command = [sys.executable, "-m", "protofed", "deploy", *words]
        with subprocess.Popen(
            command, cwd=self.place, stdout=subprocess.PIPE, text=True, env=self.environment
        ) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)

    @contextmanager
    def clients(self, number: int, first: int = 0) -> Iterator[None]:
        """So many."""
        if first == number:
            yield
            return
        with self.running("client", "F", "--id", str(first)), self.clients(number, first + 1):
            yield


if __name__ == "__main__":
    sys.exit(main())
