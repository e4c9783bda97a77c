"""What a user sees while runs go on."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from protofed.experiment import Experiment
from protofed.runs.failure import FailedRun
from protofed.runs.progress import Asking, Bar, Cell, Lines, Progress, Relay, Standing, progress, told_score
from protofed.runs.result import Accuracy, Result
from protofed.runs.run import new_run
from tests.support.made_rounds import a_round

FIRST = Standing("fedavg", 0, rounds=4, done=0, engine="stacked engine on cpu (small)")
SECOND = replace(FIRST, seed=1)


def played(standing: Standing, rounds: int) -> Standing:
    """The same run some rounds later."""
    return replace(standing, done=rounds, loss=1.5, score="own/own/head 50.0 %", seconds_left=2.0)


def result(standing: Standing) -> Result:
    """What a run came to, as far as progress is concerned."""
    accuracy = {"own/own/head": Accuracy(50.0, 50.0, 50.0, 1, [50.0])}
    values: dict[str, Any] = {
        **{"method": standing.method, "dataset": "digits", "split": "iid", "clients": 1, "rounds": 4},
        **{"seed": standing.seed, "engine": "stacked", "device": "cpu", "model": "cnn", "params": {}},
        **{"model_parameters": [1], "client_memory": 0, "score": "own/own/head", "bytes_up": 0, "bytes_down": 0},
    }
    return Result(**values, seconds=1.0, stopped="rounds", accuracy=accuracy)


def test_a_single_run_has_a_line_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    lines.tell(FIRST)
    lines.tell(played(FIRST, 1))
    lines.tell(replace(played(FIRST, 4), score="", seconds_left=0.0))
    assert capsys.readouterr().err.splitlines() == [
        "fedavg seed 0: 4 rounds, stacked engine on cpu (small)",
        "fedavg seed 0: round 1/4  own/own/head 50.0 %  loss 1.500  2 s left",
        "fedavg seed 0: round 4/4  loss 1.500",
    ]


def test_several_runs_keep_their_numbers_when_they_mix(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(2)
    for standing in (FIRST, SECOND, played(FIRST, 1), played(SECOND, 1)):
        lines.tell(standing)
    lines.finish(result(SECOND))
    lines.finish(result(FIRST))
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] fedavg seed 0: 4 rounds, stacked engine on cpu (small)",
        "[2/2] fedavg seed 1: 4 rounds, stacked engine on cpu (small)",
        "[2/2] fedavg seed 1: own/own/head 50.0 % after 4 rounds",
        "[1/2] fedavg seed 0: own/own/head 50.0 % after 4 rounds",
    ]


def test_several_runs_say_how_long_the_rest_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(4)
    lines.began -= 120  # two minutes ago
    lines.finish(result(replace(FIRST, method="local")))  # complete before: it says nothing about speed
    lines.tell(FIRST)
    lines.finish(result(FIRST))
    assert capsys.readouterr().err.splitlines()[-1].endswith("after 4 rounds, about 4 min left")


def shown(bar: Bar) -> dict[str, tuple[float, float | None]]:
    """Every bar there is: done, of how many."""
    return {task.description: (task.completed, task.total) for task in bar.bar.tasks}


def test_every_run_that_is_going_on_has_a_bar() -> None:
    bar = Bar(3)
    try:
        bar.finish(result(replace(FIRST, method="local")))  # complete before
        bar.tell(FIRST)
        bar.tell(replace(SECOND, done=2))  # goes on
        bar.tell(played(FIRST, 1))
        assert shown(bar) == {"all runs": (1.75, 3), "fedavg seed 0": (1, 4), "fedavg seed 1": (2, 4)}
        bar.finish(result(SECOND))
        assert shown(bar) == {"all runs": (2.25, 3), "fedavg seed 0": (1, 4)}
        bar.finish(result(FIRST))
        assert shown(bar) == {"all runs": (3, 3)}
    finally:
        bar.end()


def test_a_single_run_keeps_its_bar() -> None:
    bar = Bar()
    try:
        bar.tell(FIRST)
        bar.tell(played(FIRST, 4))
        assert shown(bar) == {"fedavg seed 0": (4, 4)}
    finally:
        bar.end()


def test_a_run_says_how_far_it_is() -> None:
    told: list[Standing] = []
    options = {"method": "fedproto", "model": "cnn", "device": "cpu", "train_size": 150, "clients": 3, "rounds": 2}
    run = new_run(Experiment.from_mapping(options | {"seed": 7}))
    run.play(None, Relay(told.append))
    assert [(standing.label, standing.done, standing.rounds) for standing in told] == [
        ("fedproto seed 7", done, 2) for done in (0, 1, 2)
    ]
    assert [standing.loss for standing in told] == [None, *(line.loss for line in run.history)]
    name = run.method.score
    assert [standing.score for standing in told] == [
        "",
        *(f"{name} {line.accuracy[name]:.1f} %" for line in run.history),
    ]
    assert told[1].seconds_left == run.history[0].seconds
    assert told[2].seconds_left == 0


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Progress().tell(FIRST)
    Progress().finish(result(FIRST))
    Progress().end()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("accuracy", "told"),
    [
        ({"own/own/head": 1.0, "global/all/head": 2.0}, "global/all/head 2.0 %"),
        ({"own/all/head": 3.0, "own/own/head": 1.0}, "own/own/head 1.0 %"),
        ({"own/all/head": 3.0}, "own/all/head 3.0 %"),
        ({}, ""),
    ],
)
def test_the_score_that_counts_is_told(accuracy: dict[str, float], told: str) -> None:
    assert told_score("global/all/head", accuracy) == told


class ZMQInteractiveShell:
    """What IPython calls the shell of a notebook."""


def test_a_notebook_has_one_cell_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=str, display=lambda *_, **__: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    cell = progress(quiet=False, runs=2)
    assert isinstance(cell, Cell)
    cell.at = 0.0
    cell.tell(replace(played(FIRST, 1), setting="model=<b>"))
    assert shown[-1] == (
        '<progress value="1" max="4"></progress> fedavg seed 0, model=&lt;b&gt;: round 1 of 4, own/own/head 50.0 %, '
        'about 2 s left<br><progress value="0" max="2"></progress> 0 of 2 runs'
    )
    cell.finish(result(FIRST), "model=<b>")
    assert shown[-1] == '<progress value="1" max="2"></progress> 1 of 2 runs'
    assert type(progress(quiet=True)) is Progress


def test_a_notebook_keeps_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, display=lambda *_, **__: SimpleNamespace(update=shown.append))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    cell = progress(quiet=False, runs=2)
    cell.tell(FIRST)
    cell.fail(FailedRun(FIRST.method, FIRST.seed, "diverged", "the loss became <nan>", round=2))
    said = "fedavg seed 0: diverged (round 2): the loss became &lt;nan&gt;<br>"
    assert shown[-1] == f'{said}<progress value="1" max="2"></progress> 1 of 2 runs'
    cell.finish(result(replace(FIRST, seed=1)))
    cell.end()
    assert shown[-1] == f'{said}<progress value="2" max="2"></progress> 2 of 2 runs'


def test_elsewhere_than_in_a_terminal_or_notebook_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress(quiet=False), Lines)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert isinstance(progress(quiet=False), Lines)


@pytest.mark.parametrize(
    ("answer", "stops"),
    [
        *[(True, True), (False, False), (None, False), (1, False), ("word", False)],
        *[(np.bool_(True), True), (np.bool_(False), False), (np.array(True), True), (np.float64(1.0), False)],
        *[(torch.tensor(True), True), (torch.tensor(False), False), (torch.tensor(1.0), False)],
    ],
)
def test_only_what_is_true_stops_a_run(answer: Any, stops: bool) -> None:
    asking = Asking(Progress(), lambda _: answer)
    assert asking.stops(a_round(1)) is stops
    assert Relay(lambda _: None, asking.stops).stops(a_round(1)) is stops
    assert not Progress().stops(a_round(1))
