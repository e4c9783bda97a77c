"""A real federation on this machine: processes, TLS and keys; everything that is started is stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.support.command_line import Outcome, invoke, start, succeed


def protofed(*words: str, place: Path) -> subprocess.Popen[str]:
    """A process of the command line, which says everything in one place."""
    return start(place, *words, stderr=subprocess.STDOUT)


class Deployment:
    """`protofed deploy`, in a folder; owners allow batches of any size, which digits that are dealt out make."""

    def __init__(self, place: Path, clients: int, min_batch: int = 1, **says: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.place, self.folder, self.clients = place, place / "federation", clients
        self.processes: dict[str, subprocess.Popen[str]] = {}
        flags = [word for name, value in says.items() for word in (f"--{name}", str(value))]
        words = ("deploy", "init", "federation", "--clients", str(clients), "--port", str(self.port), *flags)
        self.passphrase = succeed(place, *words).out.split()[-1]
        for number in range(clients):
            with (self.folder / f"clients/{number}/client.yaml").open("a") as says_too:
                says_too.write(f"min_batch: {min_batch}\n")

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGINT)
        for name in list(self.processes):
            self._ended(name)

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """The server, or a client; wait until it says that it runs."""
        self.processes[name] = protofed("deploy", *words, place=self.place)
        return self._running(name)

    def _running(self, name: str) -> subprocess.Popen[str]:
        process = self.processes[name]
        assert process.stdout is not None
        line = process.stdout.readline()
        while "not connected" in line or line.startswith(
            "metrics"
        ):  # one that was killed is taken for present for a minute
            line = process.stdout.readline()
        assert "listening" in line or "running" in line, line + process.stdout.read()
        return process

    def server(self) -> subprocess.Popen[str]:
        """Start it."""
        return self.start("server", "server", "federation")

    def client(self, number: int, *words: str) -> subprocess.Popen[str]:
        """Start one."""
        return self.start(f"client-{number}", "client", "federation", "--id", str(number), *words)

    def everyone(self) -> None:
        """Start all clients at once."""
        names = {f"client-{number}": str(number) for number in range(self.clients)}
        for name, number in names.items():
            self.processes[name] = protofed("deploy", "client", "federation", "--id", number, place=self.place)
        for name in names:
            self._running(name)

    def stop(self, name: str, how: int = signal.SIGINT) -> str:
        """End one that was started; what it said."""
        self.processes[name].send_signal(how)
        return self._ended(name)

    def _ended(self, name: str) -> str:
        process = self.processes.pop(name)
        try:
            return process.communicate(timeout=40)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def run(self, out: str, **experiment: Any) -> Outcome:
        """An experiment, to its end."""
        (self.place / "experiment.yaml").write_text(yaml.safe_dump({"defence": "none", **experiment}))
        return invoke(self.place, "deploy", "run", "federation", "experiment.yaml", "--out", out)

    def listening(self) -> bool:
        """Whether anything still is."""
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def federation(place: Path, clients: int, **says: Any) -> Iterator[Deployment]:
    """One whose server and clients run."""
    with Deployment(place, clients, **says) as made:
        made.server()
        made.everyone()
        yield made


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(word) for word in path.read_text().split()] if path.exists() else []
    return [one for child in children for one in (child, *descendants(child))]


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may be listed until somebody asks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(true: Any, seconds: float = 60) -> None:
    """Wait for something."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
