"""python -m benchmarks.network: what a federation over TLS costs besides training, and the memory of its processes.

Clients hold almost no images, so a round is all overhead: finding work, starting processes, carrying messages. FedAvg
sends the whole model both ways; its size is that of a message. Everything runs on this machine, over loopback.
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROUNDS = 5
MODEL = """\
from torch import nn

class Wide(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, classes))
"""
BEGIN, END = "<!-- begin: written by python -m benchmarks.network -->", "<!-- end: network -->"
KINDS = {
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "server's app",
    "flower/node.py": "SuperNode",
    "flwr-clientapp": "client's app",
}
"""Processes by what their command lines hold."""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, save, and write the table into a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 40.0])
    parser.add_argument("--out", type=Path, default=Path("runs/network.json"), help="what it holds is kept")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args(words)
    found: dict[str, Any] = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    for megabytes in asked.megabytes:
        for clients in asked.clients:
            name = f"{clients} clients, {megabytes:g} MB"
            if name not in found:
                found[name] = measure(clients, megabytes)
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, json.dumps(found[name]), flush=True)
    if asked.page is not None:
        head, _, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN)
        asked.page.write_text(f"{head}{BEGIN}\n\n{table(found)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


def table(found: dict[str, Any]) -> str:
    """A line a measurement."""
    lines = [f"| clients | message | seconds a round | {' | '.join(f'{kind}, MB' for kind in KINDS.values())} |"]
    lines.append(f"|---:|---:|---:|{'---:|' * len(KINDS)}")
    for row in found.values():
        memory = [f"{row['memory'].get(kind, 0) / 1e6:.0f}" for kind in KINDS.values()]
        cells = [str(row["clients"]), f"{row['megabytes']:g} MB", f"{row['seconds']:.1f}", *memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(clients: int, megabytes: float) -> dict[str, Any]:
    """The median round of a federation, and the most memory of each kind of process."""
    with tempfile.TemporaryDirectory(prefix="protofed-") as place, Watch() as watch:
        folder = Path(place)
        width = round(megabytes * 1e6 / 4 / 75)
        (folder / "wide.py").write_text(MODEL.format(width=width), encoding="utf-8")
        experiment = {"method": "fedavg", "dataset": "digits", "train_size": 20 * clients, "split": "iid"}
        experiment |= {"model": f"{folder / 'wide.py'}:Wide", "rounds": ROUNDS, "eval_every": ROUNDS, "lr": 0.0001}
        (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        _protofed(folder, "init", "F", "--clients", str(clients), "--port", port, "--minimum", str(clients))
        for number in range(clients):
            with (folder / f"F/clients/{number}/client.yaml").open("a", encoding="utf-8") as file:
                file.write("methods: [fedavg]\n")  # its owner allows a model from a file
        with _running(folder, "server", "F"), _all(folder, clients):
            _protofed(folder, "run", "F", "experiment.yaml", "--out", "run", "--quiet")
        lines = [json.loads(line) for line in (folder / "run/rounds.jsonl").read_text("utf-8").splitlines()]
    seconds = [line["seconds"] for line in lines[1:-1]]  # the first meets the clients, the last tests the models
    memory = dict(watch.most)
    return {"clients": clients, "megabytes": megabytes, "seconds": statistics.median(seconds), "memory": memory}


class Watch(threading.Thread):
    """Looks at the memory of all of Flower's processes, and keeps the most of each kind."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[str, int] = {}
        self.over = threading.Event()

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        """Until told to end."""
        while not self.over.wait(0.2):
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    kind = next((name for word, name in KINDS.items() if word in line), None)
                    if kind is not None:
                        status = (path / "status").read_text("utf-8")
                        peak = 1024 * int(status.partition("VmHWM:")[2].split()[0])
                        self.most[kind] = max(self.most.get(kind, 0), peak)
                except (OSError, IndexError):
                    continue


def _protofed(place: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "protofed", "deploy", *words], cwd=place, check=True)


@contextmanager
def _running(place: Path, *words: str) -> Iterator[None]:
    command = [sys.executable, "-m", "protofed", "deploy", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it says that it runs
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


@contextmanager
def _all(place: Path, clients: int, first: int = 0) -> Iterator[None]:
    if first == clients:
        yield
        return
    with _running(place, "client", "F", "--id", str(first)), _all(place, clients, first + 1):
        yield


if __name__ == "__main__":
    sys.exit(main())
