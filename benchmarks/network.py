"""python -m benchmarks.network: what a federation over TLS costs besides training, and what its processes take.

Clients hold almost no images, so a round is all overhead: finding work, carrying messages, keeping models. FedAvg
sends the whole model both ways; its size is that of a message. One client with a model of protofed's own, which it
really trains, shows what memory a client takes. Everything runs on this machine, over loopback. With `--versus SRC`,
the sources of another version, both are measured in turn.
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

import numpy as np
import yaml

from benchmarks.marked import RESULTS, write_part
from protofed.internal.atomic_files import write_text

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
BALLAST = "ballast"
"""What it is called."""
IMAGES = 400
"""Of a client that really trains."""
CLIENT = ("worker", "deploy client")
"""The processes of a client."""
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
    parser.add_argument("--models", nargs="*", default=["cnn"], help="of protofed's own, with one client")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--versus", type=Path, metavar="SRC", help="sources of another version, measured beside")
    parser.add_argument("--out", type=Path, default=RESULTS / "network.json", help="what it holds is kept")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args(words)
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    ways = {"now": None} if asked.versus is None else {"before": asked.versus.resolve(), "now": None}
    cases = [(clients, megabytes) for megabytes in asked.megabytes for clients in asked.clients]
    for clients, model in [*cases, *((1, model) for model in asked.models)]:
        for way, source in ways.items():
            name = f"{way}, {clients} clients, {model if isinstance(model, str) else f'{model:g} MB'}"
            if name not in found:
                found[name] = {"way": way, **measure(clients, model, asked.rounds, source)}
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                write_text(asked.out, json.dumps(found, indent=1) + "\n")
            print(name, json.dumps(found[name]), flush=True)
    if asked.page is not None:
        write_part(asked.page, text(found), BEGIN, END)
    return 0


def text(found: Mapping[str, Any]) -> str:
    """What stands on the page."""
    return "\n\n".join([table(found), processes(found), *memory(found)])


def memory(found: Mapping[str, Any]) -> list[str]:
    """A sentence a model of protofed's own: what a client takes in all."""
    rows = [row for row in found.values() if row["way"] == "now" and row["model"] != BALLAST]
    return [
        f"A client with `--model {row['model']}` takes {sum(row['memory'][kind] for kind in CLIENT) / 1e6:.0f} MB in "
        f"all: {row['memory']['worker'] / 1e6:.0f} its worker and {row['memory']['deploy client'] / 1e6:.0f} its node."
        for row in rows
    ]


def table(found: Mapping[str, Any]) -> str:
    """A line a measurement: seconds of a round."""
    lines = [
        "| version | clients | model | message | seconds per round | with a test | times |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in found.values():
        plain, tested = row["seconds"], row["with_test"]
        cells = [*_named(row), f"{plain:.2f}", f"{tested:.2f}"]
        lines.append(f"| {' | '.join(cells)} | {tested / plain:.2f} |")
    return "\n".join(lines)


def processes(found: Mapping[str, Any]) -> str:
    """A line a kind of process: what it takes."""
    lines = [
        "| version | clients | model | message | process | CPU seconds per round | MB |",
        "|---|---:|---|---:|---|---:|---:|",
    ]
    for row in found.values():
        for kind in (kind for kind in KINDS.values() if kind in row["memory"]):
            cells = [*_named(row), kind, f"{row['cpu'].get(kind, 0):.2f}", f"{row['memory'][kind] / 1e6:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _named(row: Mapping[str, Any]) -> list[str]:
    return [row["way"], str(row["clients"]), row["model"], f"{row['megabytes']:.2g} MB"]


def measure(clients: int, model: float | str, rounds: int, source: Path | None) -> dict[str, Any]:
    """The median round of a federation with and without a test, and what each kind of process takes.

    Args:
        clients: how many.
        model: megabytes of ballast, or a model of protofed's own.
        rounds: of each of the two runs.
        source: the sources of another version.
    """
    with tempfile.TemporaryDirectory(prefix="protofed-") as place:
        folder = Path(place).resolve()
        # Flower's processes, which an older version starts, work elsewhere
        with Watch(folder if source is None else None) as watch:
            return played(Federation(folder, source), watch, clients, model, rounds)


def played(here: Federation, watch: Watch, clients: int, model: float | str, rounds: int) -> dict[str, Any]:
    """The same in a folder, while somebody watches."""
    folder = here.place
    experiment: dict[str, Any] = {"method": "fedavg", "split": "iid", "rounds": rounds}
    says: dict[str, Any] = {"threads": 1}
    if isinstance(model, str):
        named = model
        images = np.random.default_rng(0).integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)
        np.savez(folder / "mine.npz", images=images, labels=np.arange(IMAGES) % 10)
        says["data"] = str(folder / "mine.npz")
    else:
        named = f"{folder / 'heavy.py'}:Heavy"
        (folder / "heavy.py").write_text(MODEL.format(numbers=round(model * 1e6 / 4)), encoding="utf-8")
        experiment |= {"dataset": "digits", "train_size": 20 * clients, "lr": 0.0001}
    experiment["model"] = named
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here.do("init", "F", "--clients", str(clients), "--port", port, "--minimum", str(clients))
    for number in range(clients):
        with (folder / f"F/clients/{number}/client.yaml").open("a", encoding="utf-8") as file:
            file.write(yaml.safe_dump(says | {"methods": ["fedavg", named]}))
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
    sent = lines[1]["bytes_up"] / clients / 1e6
    about = {"clients": clients, "model": model if isinstance(model, str) else BALLAST, "megabytes": sent}
    return {**about, "rounds": rounds, **seconds, "cpu": cpu, "memory": dict(watch.most)}


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
