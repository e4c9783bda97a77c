"""The settings of the process are an experiment's while it is prepared and played, and the caller's afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.runs.process import WORKSPACE, process_settings

SMALL: dict[str, Any] = {"model": "cnn", "device": "cpu", "train_size": 120, "clients": 2, "rounds": 1}


def settings() -> tuple[Any, ...]:
    """All that a run may change."""
    cudnn = torch.backends.cudnn
    return (
        torch.get_num_threads(),
        torch.backends.cuda.matmul.allow_tf32,
        *(cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark),
        torch.are_deterministic_algorithms_enabled(),
        os.environ.get(WORKSPACE),
    )


@pytest.fixture(params=[True, False])
def callers(request: pytest.FixtureRequest) -> Iterator[tuple[Any, ...]]:
    """Settings of a caller that no experiment of these tests has."""
    before, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    torch.set_num_threads(3)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = request.param
    torch.backends.cudnn.benchmark = True
    yield settings()
    torch.set_num_threads(before)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = benchmark


@pytest.mark.parametrize(
    ("precision", "fast"), [("float32", False), ("float64", False), ("tf32", True), ("bf16", True)]
)
def test_tf32_is_used_where_it_was_asked_for(callers: tuple[Any, ...], precision: Any, fast: bool) -> None:
    with process_settings(Experiment(precision=precision)):
        assert torch.backends.cuda.matmul.allow_tf32 == torch.backends.cudnn.allow_tf32 == fast
    assert settings() == callers


def test_deterministic_holds_for_the_runs_that_ask_for_it(callers: tuple[Any, ...]) -> None:
    with process_settings(Experiment(deterministic=True, threads=2)):
        assert settings()[0] == 2
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert os.environ[WORKSPACE] == ":4096:8"
        with process_settings(Experiment()):
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert settings() == callers


def test_a_workspace_of_the_callers_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with process_settings(Experiment(deterministic=True)):
        assert os.environ[WORKSPACE] == ":4096:8"
    assert os.environ[WORKSPACE] == ":16:8"


def test_run_compare_and_sweep_leave_the_caller_as_it_was(callers: tuple[Any, ...]) -> None:
    threads: list[int] = []
    protofed.run("fedavg", on_round=lambda _: threads.append(torch.get_num_threads()), threads=1, **SMALL)
    assert threads == [1]
    assert settings() == callers
    protofed.compare(["fedavg"], 1, jobs=1, threads=2, **SMALL)
    assert settings() == callers
    protofed.sweep({"lr": [0.01]}, ["fedavg"], 1, jobs=1, threads=1, **SMALL)
    assert settings() == callers


def test_so_does_an_experiment_that_is_refused(callers: tuple[Any, ...]) -> None:
    with pytest.raises(UserError, match="--defence"):
        protofed.run("fedavg", threads=1, defence="nonsense", **SMALL)
    assert settings() == callers
