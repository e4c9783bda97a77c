"""Fifteen rounds over real processes with TLS and keys, while clients and server are killed and started again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from protofed.experiment import Experiment
from tests.deploy.test_network import playing, rounds
from tests.deploy.test_rounds import assert_same, lines, sequential
from tests.support.federation_processes import Deployment, alive, descendants, federation, until

pytestmark = pytest.mark.soak

ASKED: dict[str, Any] = {"method": "fedproto", "dataset": "digits", "train_size": 300, "alpha": 0.5, "model": "cnn"}
ASKED |= {"rounds": 15, "eval_every": 5}
WARM, MORE = 2, 4
"""Rounds after which a process has opened what it needs; files that it may have open besides for a moment."""
POOL = 2 * (5 + 10)
"""Handles that the server may have of its database: SQLAlchemy's pool fills as threads happen to meet, up to 5
connections and 10 for a moment, each with the file and its log."""


class Sample(NamedTuple):
    """What a process holds in a round."""

    round: int
    files: int  # and sockets, without the database
    database: int  # handles of it
    megabytes: float


class Watch(threading.Thread):
    """Looks at all processes of a federation, every half second."""

    def __init__(self, made: Deployment) -> None:
        super().__init__(daemon=True)
        self.made, self.over = made, threading.Event()
        self.samples: dict[int, list[Sample]] = defaultdict(list)
        self.names: dict[int, str] = defaultdict(str)

    def run(self) -> None:
        """Until it is told to end."""
        while not self.over.wait(0.5):
            number = rounds(self.made)
            for process in list(self.made.processes.values()):
                for pid in (process.pid, *descendants(process.pid)):
                    with suppress(OSError):  # it has ended
                        self._look(pid, number)

    def _look(self, pid: int, number: int) -> None:
        self.names[pid] = command(pid) or self.names[pid]  # of one that has ended nothing is known
        files = handles(pid)
        database = sum("/state.db" in file for file in files)
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.samples[pid].append(Sample(number, len(files) - database, database, resident / 1e6))

    def grown(self) -> dict[str, tuple[Sample, Sample]]:
        """Of processes that lived for five rounds and more: what they held when they were warm, and at the end."""
        found = {}
        for pid, samples in self.samples.items():
            first, last = samples[0].round + WARM, samples[-1].round
            if last - first >= 5:
                early = middle([one for one in samples if one.round in (first, first + 1)])
                late = middle([one for one in samples if one.round in (last - 1, last)])
                found[f"{self.names[pid]} ({pid})"] = (early, late)
        return found


def middle(samples: list[Sample]) -> Sample:
    """Their medians."""
    return Sample(samples[0].round, *(round(median(values), 1) for values in list(zip(*samples, strict=True))[1:]))


def handles(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    for handle in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - nothing is opened
        with suppress(OSError):  # closed meanwhile
            found.append(os.readlink(f"/proc/{pid}/fd/{handle}"))  # noqa: PTH115
    return found


def command(pid: int) -> str:
    """What a process is called: its program or script, and the next word."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    names = [Path(word).name for word in words if word and not word.startswith("-")]
    return " ".join(names[1:3])


def below(made: Deployment, name: str, word: str) -> list[int]:
    """The processes of a client or the server whose command has a word in it."""
    found = []
    for pid in descendants(made.processes[name].pid):
        with suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


@contextmanager
def watched(made: Deployment) -> Iterator[Watch]:
    """What its processes hold meanwhile."""
    watch = Watch(made)
    watch.start()
    try:
        yield watch
    finally:
        watch.over.set()
        watch.join()


def kill_worker(made: Deployment, client: int) -> None:
    """The process that trains; `deploy client` starts another."""
    for pid in below(made, f"client-{client}", "warm_worker"):
        os.kill(pid, signal.SIGKILL)


def kill_client(made: Deployment, client: int) -> None:
    """`deploy client` itself, and nothing else: what it has started must end too; then it is started again."""
    process = made.processes[f"client-{client}"]
    started = descendants(process.pid)
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, started)), 30)
    made.client(client)


def kill_everything(made: Deployment, client: int) -> None:
    """A client and all its processes at once, as when a machine loses its power; then it is started again."""
    process = made.processes[f"client-{client}"]
    for pid in (process.pid, *descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    made.client(client)


FAULTS = {2: (kill_worker, 1), 3: (kill_client, 2), 5: (kill_worker, 1), 11: (kill_everything, 2)}
"""After how many rounds what happens to whom."""
SERVER = 7
"""After how many rounds the server is killed."""


def play(made: Deployment, faults: dict[int, Any], upto: int | None) -> int | None:
    """`deploy run` with faults after some rounds, until so many are played; its exit code, if it ends by itself."""
    with playing(made, "run", **ASKED) as run:
        for number, (fault, client) in faults.items():
            until(lambda number=number: rounds(made) >= number, 300)
            fault(made, client)
        if upto is None:
            return run.wait(600)
        until(lambda: rounds(made) >= upto, 300)
        process = made.processes.pop("server")
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        return None


def test_fifteen_rounds_with_kills_equal_the_sequential_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All must answer (minimum 3), so that a round with a fault is played again when everyone is back."""
    began = time.monotonic()
    with federation(tmp_path, 3, minimum=3, deadline=150, wait=240) as made:
        with watched(made) as watch:
            play(made, {number: fault for number, fault in FAULTS.items() if number < SERVER}, SERVER)
            assert not (tmp_path / "run/result.json").exists()
            made.server()
            code = play(made, {number: fault for number, fault in FAULTS.items() if number > SERVER}, None)
        assert code == 0, (made.folder / "server/server.log").read_text()[-3000:]
    sent = [line["bytes_down"] for line in lines(tmp_path / "run") if not line["accuracy"]]
    again = sum(one > 1.2 * median(sent) for one in sent)  # some were asked twice
    with capsys.disabled():
        print(f"\n{time.monotonic() - began:.0f} s; rounds played again: {again} or more")
        for name, (early, late) in sorted(watch.grown().items()):
            print(f"{name}: {early} to {late}")
    assert again
    assert not [watch.names[pid] for pid in watch.samples if alive(pid)]
    assert not made.listening()
    assert [line.get("left_out") for line in lines(tmp_path / "run")] == [None] * 15
    local = Experiment(**ASKED, clients=3, engine="sequential", device="cpu", threads=1)
    assert_same(tmp_path / "run", sequential(local))
    assert len(watch.grown()) >= 3  # the node and the worker of the client that lives on, and another node
    for name, (early, late) in watch.grown().items():
        assert late.files <= early.files + MORE, name
        assert late.database <= POOL, name
