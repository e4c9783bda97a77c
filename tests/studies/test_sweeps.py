"""What a sweep plans: every combination, method and seed, each once, each in a folder of its own."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import protofed
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.report.plots import is_wide, lines_of, places_of
from protofed.runs.result import Accuracy, Result
from protofed.studies.comparison import MethodRow
from protofed.studies.spread import Spread
from protofed.studies.sweeps import Sweep, SweepCell, SweepStudy


def planned(grid: dict[str, Sequence[Any]], *methods: str, seeds: int = 1, **options: Any) -> SweepStudy:
    """A sweep with one job."""
    return SweepStudy(methods or ["mp-fedcl"], Experiment(**options), seeds, 1, grid)


def test_every_combination_method_and_seed_is_a_run() -> None:
    found = planned({"alpha": [0.1, 1], "k": [1, 4]}, "mp-fedcl", seeds=2, seed=5, params={"temperature": 0.5})
    assert [(run.alpha, run.params, run.seed) for _, run in found.runs] == [
        (alpha, {"temperature": 0.5, "k": k}, seed) for alpha in (0.1, 1.0) for k in (1, 4) for seed in (5, 6)
    ]
    assert [setting for setting, _ in found.runs[::2]] == [{"alpha": a, "k": k} for a in (0.1, 1) for k in (1, 4)]


def test_a_method_runs_once_for_all_values_of_a_parameter_that_it_lacks() -> None:
    found = planned({"k": [1, 2, 4], "lr": [0.1, 0.2]}, "mp-fedcl", "fedavg")
    ours = [(setting, run.lr) for setting, run in found.runs if run.method == "fedavg"]
    assert ours == [({"lr": 0.1}, 0.1), ({"lr": 0.2}, 0.2)]
    assert len(found.runs) == 6 + 2


def test_a_name_that_is_option_and_parameter_is_swept_as_either() -> None:
    found = planned({"option.alpha": [0.1, 1], "params.alpha": [0.25, 0.5]}, "fedplcc", "local")
    ours = [(run.alpha, run.params) for _, run in found.runs if run.method == "fedplcc"]
    assert ours == [(a, {"alpha": p}) for a in (0.1, 1.0) for p in (0.25, 0.5)]
    theirs = [(setting, run.alpha, run.params) for setting, run in found.runs if run.method == "local"]
    assert theirs == [({"option.alpha": a}, a, {}) for a in (0.1, 1)]
    assert len({task.folder for task in found.tasks(Path("sweep"))}) == 6


def test_every_run_has_a_folder_of_its_own_inside_the_sweeps() -> None:
    models = ["cnn", "mlp", "../x.py:Net", "..%2Fx.py:Net"]
    tasks = planned({"model": models, "k": [1, 2]}, "mp-fedcl", "local", seeds=2).tasks(Path("sweep"))
    folders = [task.folder for task in tasks]
    assert len(set(folders)) == len(folders) == 4 * 2 * 2 + 4 * 2
    for folder in folders:
        assert folder is not None
        assert folder.parts[0] == "sweep"
        assert len(folder.parts) == 3
    assert folders[0] == Path("sweep/model=cnn,k=1/mp-fedcl-seed0")
    assert tasks[0].setting == "model=cnn k=1"
    alone = planned({"k": [1, 2]}, "mp-fedcl", "local").tasks(Path("sweep"))
    assert [task.folder for task in alone][1] == Path("sweep/local-seed0")


def test_threads_are_shared_unless_they_are_swept() -> None:
    (_, run), *_ = planned({"k": [1, 2]}).with_threads().runs
    assert run.threads is not None
    assert [run.threads for _, run in planned({"threads": [1, 2]}, threads=7).with_threads().runs] == [1, 2]


@pytest.mark.parametrize(
    ("grid", "methods", "message"),
    [
        ({}, ["local"], "missing value for --grid: .*alpha=0.1,0.5,1"),
        ({"alhpa": [1]}, ["local"], "'alhpa' for --grid: (?s:.*)did you mean 'alpha'"),
        ({"k": [1]}, ["local"], "'k' for --grid: .*there is none of that name"),
        ({"tempersture": [1]}, ["mp-fedcl"], "did you mean 'temperature'"),
        ({"alpha": [1]}, ["local", "fedplcc"], "'alpha' .*an option and a parameter of fedplcc"),
        ({"option.k": [1]}, ["mp-fedcl"], "'k' for --grid: .*there is none of that name"),
        ({"params.lr": [1]}, ["mp-fedcl"], "'lr' for --grid: .*there is none of that name"),
        ({"option.seed": [1]}, ["local"], "'option.seed' (?s:.*)--seeds"),
        ({"method": ["local"]}, ["local"], "'method' (?s:.*)with --method"),
        ({"seed": [1]}, ["local"], "'seed' (?s:.*)--seeds"),
        ({"params": [{}]}, ["local"], "'params' (?s:.*)name the parameter itself"),
        ({"k": []}, ["mp-fedcl"], "'k' .*a list of values"),
        ({"model": "cnn"}, ["mp-fedcl"], "'model' .*a list of values"),
        ({"alpha": [0.5, 1, 1.0]}, ["local"], "'alpha' .*1 is there twice"),
        ({"alpha": [0.5, -1]}, ["local"], "'-1.0' for --alpha: "),
        ({"k": [1, 0]}, ["mp-fedcl"], "'0' for --set k: "),
        ({"lr": [0.1], "option.lr": [0.2]}, ["local"], "'lr' .*twice"),
        ({"k": [1], "params.k": [2]}, ["mp-fedcl"], "'k' .*twice"),
        ({"lr": [1]}, [], "missing value for --method: name at least one"),
    ],
)
def test_what_cannot_be_swept_is_an_error(grid: dict[str, Any], methods: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        assert SweepStudy(methods, Experiment(), 1, 1, grid).runs


def test_what_is_varied_is_not_set_too() -> None:
    with pytest.raises(UserError, match=r"'k' for --set: .*it is varied"):
        assert planned({"k": [1, 2]}, params={"k": 9}).runs


@pytest.mark.parametrize("score", ["accuracy", "own/all", "own/all/nearest/x", "mine/all/head"])
def test_a_score_is_a_model_a_test_and_a_rule(score: str) -> None:
    with pytest.raises(UserError, match=r"--score: .*own/all/nearest"):
        SweepStudy(["mp-fedcl"], Experiment(), 1, 1, {"k": [1]}, score)


def cell(method: str, score: str, mean: float, **setting: Any) -> SweepCell:
    """A method over two seeds: the head, and perhaps a rule of its own."""
    spread = Spread.of([mean - 1, mean + 1])
    accuracy = {score: spread, "own/own/head": spread}
    return SweepCell(setting, MethodRow(method, score, [3, 3], accuracy, [], spread, spread, spread))


def swept(score: str | None) -> Sweep:
    """Two methods of which one lacks k."""
    cells = [
        *(cell("ours", "own/all/nearest", 10 * alpha + k, alpha=alpha, k=k) for alpha in (1, 2) for k in (1, 2)),
        *(cell("theirs", "own/own/head", alpha, alpha=alpha) for alpha in (1, 2)),
    ]
    return Sweep({"alpha": [1, 2], "k": [1, 2]}, score, cells, [])


def test_a_line_is_a_method_and_what_else_is_swept() -> None:
    lines = lines_of(swept(None))
    assert {label: [found.setting for found in cells] for label, cells in lines.items()} == {
        "ours k=1": [{"alpha": 1, "k": 1}, {"alpha": 2, "k": 1}],
        "ours k=2": [{"alpha": 1, "k": 2}, {"alpha": 2, "k": 2}],
        "theirs": [{"alpha": 1}, {"alpha": 2}],
    }


def test_the_score_is_one_that_all_methods_have_unless_it_is_asked_for() -> None:
    assert swept(None).shown_score == "own/own/head"
    assert swept("own/all/nearest").shown_score == "own/all/nearest"


def test_a_method_without_the_score_has_a_note() -> None:
    sweep = swept("own/all/nearest")
    assert sweep.notes() == ["theirs has no own/all/nearest, only own/own/head"]
    assert swept(None).notes() == []


def ended(method: str, seed: int, value: float, clusters: int | None = None) -> Result:
    """A run that came to a value."""
    values: dict[str, Any] = {
        **{"method": method, "dataset": "digits", "split": "iid", "clients": 1, "rounds": 3, "seed": seed},
        **{"engine": "stacked", "device": "cpu", "model": "cnn", "params": {}, "model_parameters": [1]},
        **{"client_memory": 0, "score": "own/own/head", "bytes_up": 0, "bytes_down": 0, "seconds": 1.0},
    }
    accuracy = {"own/own/head": Accuracy(value, value, value, 1, [value])}
    return Result(**values, stopped="rounds", accuracy=accuracy, most_clusters=clusters)


def test_lines_are_tested_against_the_best_of_the_same_data() -> None:
    """A rate and a parameter of a method are what is compared, alpha makes another problem."""
    grid: dict[str, list[Any]] = {"alpha": [0.1, 10], "lr": [0.01, 0.1], "k": [1]}
    cells, results = [], []
    for alpha, lr in itertools.product(grid["alpha"], grid["lr"]):
        for method, setting in (("mp-fedcl", {"k": 1}), ("fedavg", {})):
            values = [50 * (alpha > 1) + 100 * lr * (method == "fedavg") + seed for seed in (0, 1, 2)]
            spread = Spread.of(values)
            row = MethodRow(method, "own/own/head", [3] * 3, {"own/own/head": spread}, [], spread, spread, spread)
            cells.append(SweepCell({"alpha": alpha, "lr": lr, **setting}, row))
            results += [ended(method, seed, value, clusters=1) for seed, value in enumerate(values)]
    sweep = Sweep(grid, None, cells, results)
    found = sweep.tests()
    assert [(one["setting"], one["best"]) for one in found[::3]] == [
        ("alpha=0.1", "fedavg lr=0.1"),
        ("alpha=10", "fedavg lr=0.1"),
    ]
    assert [one["other"] for one in found[:3]] == ["mp-fedcl lr=0.01 k=1", "fedavg lr=0.01", "mp-fedcl lr=0.1 k=1"]
    assert [one["difference"] for one in found[:3]] == pytest.approx([10, 9, 10])
    assert json.loads(sweep.to_json())["tests"] == found
    rows = list(csv.DictReader(io.StringIO(sweep.files()["tests.csv"])))
    assert [(row["setting"], row["other"]) for row in rows] == [(one["setting"], one["other"]) for one in found]
    assert [note.split()[3] for note in sweep.notes()] == ["mp-fedcl", "fedavg"]  # each once, of the runs


def test_values_have_their_place_on_the_axis() -> None:
    assert places_of([0.05, 1, 10]) == [0.05, 1.0, 10.0]
    assert places_of(["cnn", "mlp"]) == places_of([True, False]) == places_of([None, 5]) == [0.0, 1.0]
    assert is_wide([0.05, 1, 10])
    assert not any(is_wide(values) for values in ([1, 2, 4], [0, 100], ["a", "b"]))


def test_python_sweeps_too() -> None:
    options: dict[str, Any] = {
        "model": "cnn",
        "device": "cpu",
        "threads": 1,
        "train_size": 150,
        "clients": 3,
        "rounds": 1,
    }
    found = protofed.sweep({"k": [1, 3]}, seeds=2, jobs=1, **options)
    assert [found.cells[n].setting for n in (0, 1)] == [{"k": 1}, {"k": 3}]
    (one,) = protofed.compare(["mp-fedcl"], 2, jobs=1, params={"k": 3}, **options).rows
    assert found.cells[1].row.accuracy == one.accuracy
    assert found.folder is None
