"""Every round's numbers in the logs of others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protofed.runs.loggers import Logged
from protofed.runs.progress import Progress, Standing
from tests.support.command_line import TINY, everything_in, invoke, refused, rounds_of, succeed


class StandIn:
    """What `wandb.init` gives."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.steps.append((step, numbers))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The runs of a stand-in for wandb."""
    made: list[StandIn] = []

    def init(**options: Any) -> StandIn:
        made.append(StandIn(**options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    return made


def numbers_of(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """What rounds.jsonl says that a log should have."""
    names = ("loss", "seconds", "bytes_up", "bytes_down")
    return [(line["round"], {name: line[name] for name in names} | line["accuracy"]) for line in rounds_of(folder)]


def test_wandb_gets_every_round_of_a_run(tmp_path: Path, runs: list[StandIn]) -> None:
    succeed(tmp_path, "run", *TINY, "--out", "run", "--quiet", "--log", "wandb")
    (run,) = runs
    assert run.steps == numbers_of(tmp_path / "run")
    assert "own/own/nearest" in run.steps[0][1]
    assert run.finished == 1
    assert (run.options["name"], run.options["group"]) == ("fedproto-seed0", "run")
    assert run.options["config"]["train_size"] == 150


def test_wandb_has_a_run_for_each_of_a_comparison(tmp_path: Path, runs: list[StandIn]) -> None:
    comparison = ("--method", "fedavg,local", "--seeds", "1", "--jobs", "1", "--threads", "1", "--out", "both")
    succeed(tmp_path, "compare", *TINY[2:], *comparison, "--quiet", "--log", "wandb")
    for run in runs:
        assert run.steps == numbers_of(tmp_path / "both" / run.options["name"])
        assert run.finished == 1
        assert run.options["reinit"] == "create_new"
    assert [run.options["config"]["method"] for run in runs] == ["fedavg", "local"]


def test_tensorboard_gets_every_round_of_a_run(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    succeed(tmp_path, "run", *TINY, "--out", "run", "--quiet", "--log", "tensorboard")
    events = reader.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "fedproto-seed0"))
    events.Reload()
    lines = numbers_of(tmp_path / "run")
    assert set(events.Tags()["scalars"]) == set(lines[0][1])
    for name in lines[0][1]:
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(round, pytest.approx(numbers[name], rel=1e-6)) for round, numbers in lines]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_missing_package_is_one_line_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    outcome = invoke(tmp_path, command, *TINY, "--out", "run", "--log", name)
    assert refused(outcome).endswith(f"it is not installed\nhint: pip install 'protofed[{name}]'\n")
    assert everything_in(tmp_path) == set()


def test_an_unknown_log_is_one_line(tmp_path: Path) -> None:
    outcome = invoke(tmp_path, "run", *TINY, "--out", "run", "--log", "tensorbord")
    assert refused(outcome).endswith("it must be one of tensorboard, wandb\nhint: did you mean 'tensorboard'?\n")
    assert everything_in(tmp_path) == set()


def test_an_interrupted_run_leaves_no_log_open() -> None:
    log = StandIn()
    logged = Logged(Progress(), lambda _: SimpleNamespace(write=log.log, close=log.finish))
    logged.tell(Standing("fedavg", 0, rounds=4, done=0, engine="stacked"))
    logged.tell(Standing("fedavg", 0, rounds=4, done=1, engine="stacked", loss=1.5, numbers={"loss": 1.5}))
    logged.end()
    logged.end()
    assert (log.steps, log.finished) == ([(1, {"loss": 1.5})], 1)
