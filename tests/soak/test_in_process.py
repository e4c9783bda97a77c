"""Hundreds of rounds of the real server with real clients over a transport that kills, delays, repeats and damages."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from protofed.deploy.connections import LOG
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.experiment import Experiment
from protofed.messages import _serialised_size
from tests.deploy.test_rounds import assert_same, lines, sequential
from tests.support.faulty_clients import DEADLINE, WAIT, Faulty, KilledError, Odds
from tests.support.loopback import with_folder

pytestmark = pytest.mark.soak

CLIENTS = 5
HARMLESS = Odds(slow=0.15, repeated=0.15, asked_twice=0.1)
REPAIRED = Odds(slow=0.1, repeated=0.1, asked_twice=0.05, late=0.03, damaged=0.03, crashed=0.03, killed=0.03)
ANYTHING = Odds(slow=0.1, repeated=0.1, asked_twice=0.05, late=0.05, damaged=0.05, crashed=0.03, killed=0.03)


GROWTH = 10_000
"""Bytes of Python's that a round may leave: its line of the record, and small change in torch, numpy and safetensors.

Of the whole process five times as much: that is also where tracing them is kept."""


def asked(method: str, rounds: int) -> Experiment:
    """Five clients with twenty images each."""
    return Experiment(
        method=method,
        rounds=rounds,
        dataset="digits",
        train_size=100,
        alpha=0.5,
        clients=CLIENTS,
        model="cnn",
        eval_every=5,
        engine="sequential",
        device="cpu",
        threads=1,
    )


def nodes(place: Path) -> dict[int, dict[str, Any]]:
    """Clients that keep what they remember in folders."""
    return {100 + k: with_folder(place, k) for k in range(CLIENTS)}


def settings(place: Path, minimum: int) -> Settings:
    return Settings(str(place / "run"), minimum, DEADLINE, WAIT)


def told(place: Path, *but: str) -> list[dict[str, Any]]:
    """rounds.jsonl without what may differ."""
    return [{k: v for k, v in line.items() if k not in ("digest", "seconds", *but)} for line in lines(place / "run")]


def models(place: Path) -> dict[str, torch.Tensor]:
    """What the server has in the end, and what every client remembers of its last turn."""
    state = load_file(place / "run/checkpoint/state.safetensors")
    found = {name: value for name, value in state.items() if name.startswith(("server/", "kept/"))}
    for k in range(CLIENTS):
        last = max((place / f"client-{k}/memory").rglob("*.safetensors"), key=lambda file: int(file.stem))
        found |= {f"{k}/{last.stem}/{name}": value for name, value in load_file(last).items()}
    return found


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def quiet(place: Path, experiment: Experiment, patch: pytest.MonkeyPatch) -> None:
    """The same run without faults."""
    grid = Faulty(nodes(place), Odds())
    grid.use(patch)
    serve(grid, experiment, settings(place, CLIENTS))
    assert_same(place / "run", sequential(experiment))


@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl"])
def test_slow_and_repeated_messages_change_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = asked(method, 60)
    quiet(tmp_path / "quiet", experiment, monkeypatch)
    grid = Faulty(nodes(tmp_path / "faulty"), HARMLESS, seed=1)
    grid.use(monkeypatch)
    serve(grid, experiment, settings(tmp_path / "faulty", 1))
    assert told(tmp_path / "faulty") == told(tmp_path / "quiet")
    assert_equal(models(tmp_path / "faulty"), models(tmp_path / "quiet"))
    assert min(grid.counts[name] for name in ("slow", "repeated", "asked_twice")) > 20


@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl"])
def test_what_is_repaired_in_time_changes_nothing_but_bytes(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round without the minimum, here all, is played again; the server itself is killed four times."""
    experiment = asked(method, 60)
    quiet(tmp_path / "quiet", experiment, monkeypatch)
    grid = Faulty(nodes(tmp_path / "faulty"), REPAIRED, seed=2, repaired=True)
    grid.use(monkeypatch)
    deaths = {("train", 1), ("train", 17), ("train", 31), ("evaluate", 60)}

    def strike(kind: str, number: int) -> None:
        if (kind, number) in deaths:
            deaths.remove((kind, number))
            raise KilledError

    grid.each, starts = strike, 0
    while not (tmp_path / "faulty/run/result.json").exists():
        starts += 1
        try:
            serve(grid, experiment, settings(tmp_path / "faulty", CLIENTS))
        except KilledError:
            continue
    assert starts == 5
    but = ("bytes_up", "bytes_down")
    assert told(tmp_path / "faulty", *but) == told(tmp_path / "quiet", *but)
    assert_equal(models(tmp_path / "faulty"), models(tmp_path / "quiet"))
    assert min(grid.counts.get(name, 0) for name in ("late", "damaged", "crashed", "killed")) > 2


def make_room_for_names() -> None:
    """Let the interpreter's table of interned names grow now: later, all of the new one would be traced, 8 MB."""
    names = [sys.intern(f"name {number}") for number in range(800_000)]
    del names


class Held(NamedTuple):
    """What this process holds."""

    python: int  # bytes, since tracing began
    resident: int  # bytes
    tensors: int
    files: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        _serialised_size.cache_clear()  # it holds the last 4096 and no more
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        files = len(list(Path("/proc/self/fd").iterdir()))
        return cls(tracemalloc.get_traced_memory()[0], resident, tensors, files, threading.active_count())


def test_five_hundred_rounds_of_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is left out is said, with the reason, and nobody else; and nothing grows but the record of the rounds."""
    experiment = asked("mp-fedcl", 500)
    grid = Faulty(nodes(tmp_path), ANYTHING, seed=3)
    grid.use(monkeypatch)
    monkeypatch.setattr(LOG, "disabled", True)  # or pytest would keep every line
    held: dict[int, Held] = {}

    def look(kind: str, number: int) -> None:
        if (kind, number) == ("train", 50) and not tracemalloc.is_tracing():
            make_room_for_names()
            tracemalloc.start()
        if kind == "train" and number % 50 == 0:
            held[number] = Held.now()

    grid.each = look
    try:
        serve(grid, experiment, settings(tmp_path, 2))
    finally:
        tracemalloc.stop()
    played = lines(tmp_path / "run")
    assert len(played) == 500
    for line in played:
        of = grid.rounds["train", line["round"]]
        failed = {node - 100: why for node, why in of.failed.items()}
        failed |= {node - 100: "not connected" for node in grid.nodes if node not in of.listed}
        found = {int(client): why for client, why in line.get("left_out", {}).items()}
        assert found.keys() == failed.keys(), line["round"]
        for client, why in failed.items():
            assert found[client].startswith(why), (line["round"], client)
        assert line["participants"] == [client for client in range(CLIENTS) if client not in failed]
        if line["accuracy"]:  # a test comes with the next turns; those of a round that is played again count too
            of = grid.rounds["train", line["round"] + 1] if line["round"] < 500 else grid.rounds["evaluate", 500]
            answered = {node - 100 for node in of.listed if node not in of.failed}
            assert answered <= set(line.get("tested", range(CLIENTS)))
    first, last = held[100], held[500]
    growth = Held(*(b - a for a, b in zip(first, last, strict=True)))
    with capsys.disabled():
        print(f"\nfaults of {sum(grid.counts.values())} questions: {grid.counts}")
        for number, what in sorted(held.items()):
            print(f"round {number}: {what}")
        print(f"rounds 100 to 500: {growth}")
    assert growth.python < 400 * GROWTH
    assert growth.resident < 400 * 5 * GROWTH
    assert growth.tensors <= 0
    assert growth.files <= 0
    assert growth.threads <= 0
