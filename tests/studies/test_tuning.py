"""Values that a comparison chooses: on validation data, with the same budget, before the test."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import protofed
from protofed.data import Split, federate, load
from protofed.errors import UserError
from protofed.experiment import HELD_OUT, Experiment
from protofed.internal.plugins import give
from protofed.report.html import gather
from protofed.report.outcome_tables import outcome_table
from protofed.report.watch import look
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.progress import Progress
from protofed.runs.result import Accuracy, Result
from protofed.studies.choose_k import ChoiceStudy
from protofed.studies.comparison import Comparison, ComparisonStudy
from protofed.studies.spread import Spread
from protofed.studies.tuning import Tried, Tuned, Tuning, tuning_notes

TINY: dict[str, Any] = {"model": "cnn", "train_size": 200, "clients": 2, "rounds": 1, "device": "cpu", "threads": 1}
TUNE = {"lr": [0.001, 0.01, 0.1], "params.lam": [0.5, 1]}
METHODS = ["fedavg", "fedproto"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    """FedAvg and FedProto, one of which has λ."""
    folder = tmp_path_factory.mktemp("tuned") / "compare"
    return protofed.compare(METHODS, 2, tune=TUNE, jobs=1, out=folder, quiet=True, **TINY), folder


def study(methods: list[str], tune: dict[str, list[Any]], **options: Any) -> ComparisonStudy:
    return ComparisonStudy(methods, Experiment.from_mapping(TINY | options), 2, 1, tune=tune)


def test_every_method_has_as_many_trials_and_no_seed_of_the_test() -> None:
    asked = study(["fedavg", "fedproto", "local"], TUNE, seed=4)
    assert asked.tuning is not None
    number = {method: sum(of == method for of, _, _ in asked.tuning.trials) for method in asked.methods}
    assert number == dict.fromkeys(asked.methods, 6)
    of_fedavg = [run.seed for of, _, run in asked.tuning.trials if of == "fedavg"]
    assert sorted(of_fedavg) == [6, 6, 6, 7, 7, 7]  # 4 and 5 are tested
    assert {run.val_fraction for _, _, run in asked.tuning.trials} == {HELD_OUT}
    assert {task.experiment.val_fraction for task in asked.further(results_of(asked), None)} == {0.0}


def test_a_grid_that_does_not_divide_the_budget_has_fewer_trials_not_more() -> None:
    asked = study(METHODS, {"lr": [0.01, 0.1], "params.lam": [0.1, 0.5, 1], "params.metric": ["mse", "l2"]})
    assert asked.tuning is not None
    assert sum(of == "fedproto" for of, _, _ in asked.tuning.trials) == 12
    assert sum(of == "fedavg" for of, _, _ in asked.tuning.trials) == 12


def results_of(asked: ComparisonStudy, **accuracy: float) -> list[Any]:
    """Endings of all trials, as good as `accuracy` says of a setting's rate."""
    assert asked.tuning is not None
    made = []
    for method, setting, run in asked.tuning.trials:
        score = {"fedavg": "global/val/head", "fedproto": "own/val/nearest", "local": "own/val/head"}[method]
        value = accuracy.get(f"lr{setting.get('lr')}".replace(".", "_"), 50.0)
        found = Accuracy(value, value, value, 1, [value])
        paper = score.replace("/val/", "/own/")
        made.append(
            Result(
                method=method,
                dataset="digits",
                split="iid",
                clients=1,
                rounds=1,
                seed=run.seed,
                engine="sequential",
                device="cpu",
                model="cnn",
                params={},
                model_parameters=[1],
                client_memory=0,
                score=paper,
                bytes_up=0,
                bytes_down=0,
                seconds=1.0,
                stopped="rounds",
                accuracy={paper: found, score: found},
            )
        )
    return made


def test_the_best_on_validation_data_is_tested(tuned: tuple[Comparison, Path]) -> None:
    found, folder = tuned
    assert [row.method for row in found.rows] == METHODS
    assert [(run.method, run.seed) for run in found.results] == [(m, s) for m in METHODS for s in (0, 1)]
    rows = list(csv.DictReader(io.StringIO((folder / "tuning.csv").read_text("utf-8"))))
    for one in found.tuned:
        best = max((row for row in rows if row["method"] == one.method), key=lambda row: float(row["mean"]))
        assert best["chosen"] == "yes"
        assert sum(row["chosen"] == "yes" for row in rows if row["method"] == one.method) == 1
        assert best["setting"] == " ".join(f"{name}={value}" for name, value in one.chosen.items())
        (trial,) = (trial for trial in one.trials if trial.setting == one.chosen)
        values = [
            Result.read(path).accuracy[str(one.score)].last
            for path in run_folders(folder / "tuning")
            if path.parent.name == ",".join(f"{name}={value}" for name, value in one.chosen.items())
            and Result.read(path).method == one.method
        ]
        assert trial.accuracy == Spread.of(values)
    for run in found.results:
        chosen = next(one.chosen for one in found.tuned if one.method == run.method)
        experiment = RunFolder.open(Path(str(run.folder))).experiment()
        assert experiment.lr == chosen["lr"]
        assert experiment.val_fraction == 0.0
        assert run.params.get("lam") == chosen.get("params.lam")


def test_everything_says_what_was_chosen_and_what_it_cost(tuned: tuple[Comparison, Path]) -> None:
    found, folder = tuned
    text = str([*outcome_table(found).rows])
    for one in found.tuned:
        assert one.runs == 6
        assert one.cost in text
        assert " ".join(f"{name}={value}" for name, value in one.chosen.items()) in text
    values = json.loads((folder / "compare.json").read_text("utf-8"))
    assert [one["chosen"] for one in values["tuning"]] == [one.chosen for one in found.tuned]
    seen = gather([folder])
    assert seen["tuning"] == [one.told for one in found.tuned]
    assert sum(map(len, seen["lines"].values())) == 4  # trials are not in the report
    assert all(line["setting"] == "" for line in seen["summary"])  # methods with rates of their own are compared
    view = look(folder)
    assert (len(view.runs), view.waiting, view.ended) == (16, 0, True)


def test_it_goes_on_where_it_was(tuned: tuple[Comparison, Path], tmp_path: Path) -> None:
    found, _ = tuned
    asked = study(METHODS, TUNE)
    begun = asked.begin(tmp_path / "compare")

    class Stop(Progress):
        ended = 0

        def finish(self, result: Result, setting: str = "") -> None:  # noqa: ARG002
            self.ended += 1
            if self.ended == 14:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begun.play(tmp_path / "compare", Stop())
    again: Comparison = protofed.resume(tmp_path / "compare", quiet=True)
    assert [row.accuracy for row in again.rows] == [row.accuracy for row in found.rows]
    assert [(one.method, one.chosen, one.trials) for one in again.tuned] == [
        (one.method, one.chosen, one.trials) for one in found.tuned
    ]
    assert ComparisonStudy.open(tmp_path / "compare").tune == asked.tune


def test_a_value_of_which_a_trial_failed_is_not_chosen() -> None:
    found = protofed.compare(["fedavg"], 1, tune={"lr": [0.01, 1e30]}, jobs=1, quiet=True, **TINY | {"rounds": 3})
    (one,) = found.tuned
    assert one.chosen == {"lr": 0.01}
    assert one.trials[1].accuracy is None
    assert one.trials[1].failed[0].startswith("diverged")
    assert found.failures == []


def test_without_a_trial_that_ends_a_method_keeps_what_it_had() -> None:
    found = protofed.compare(["fedavg"], 1, tune={"lr": [1e29, 1e30]}, jobs=1, quiet=True, **TINY | {"rounds": 3})
    assert found.tuned[0].chosen == {}
    assert any("no trial of fedavg came to its end" in note for note in found.notes())
    assert found.rows[0].failed == []


def test_a_federation_of_ones_own_holds_samples_out() -> None:
    split = Split("iid", 0.1, 1, balance=True, ways=3, half_width=0, shots=5, test_shots=5)
    federation = federate(load("digits", train_size=120), split, 2, 0, 0.0)
    held = federation.holding_out(0.2, seed=3)
    for mine, client in zip(held.clients, federation.clients, strict=True):
        assert mine.validation is not None
        assert len(mine.validation) == round(0.2 * len(client.train))
        assert len(mine.train) + len(mine.validation) == len(client.train)
    again = held.holding_out(0.5, seed=4)
    for mine, client in zip(again.clients, held.clients, strict=True):  # what is held out already stays
        assert mine.validation is client.validation
        assert mine.train is client.train
    options = {name: value for name, value in TINY.items() if name not in ("train_size", "clients")}
    found = protofed.compare(["fedavg"], 1, federation=federation, tune={"lr": [0.01, 0.1]}, quiet=True, **options)
    assert found.tuned[0].chosen["lr"] in (0.01, 0.1)


@pytest.mark.parametrize(
    ("tune", "says"),
    [
        ({"alpha": [0.1, 1]}, "'alpha' for --tune: it cannot be varied here"),
        ({"rounds": [1, 2]}, "'rounds' for --tune: it cannot be varied here"),
        ({"lrr": [1, 2]}, "'lrr' for --tune: (?s:.*)did you mean 'lr'"),
        ({"seed": [1, 2]}, "'seed' for --tune: it cannot be varied"),
        ({"lr": []}, "'lr' for --tune: it must have a list"),
        ({"lr": [0.1, 0.1]}, "'lr' for --tune: 0.1 is there twice"),
        ({"lr": [0.1, 0.0]}, "'0.0' for --lr"),
        ({"params.tau": [1, 2]}, "'tau' for --tune"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_played(tune: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        study(METHODS, tune).begin(None)


def test_a_choice_at_the_end_of_a_range_is_noted_once() -> None:
    trials = [Tried({"lr": rate}, Spread.of([100 * rate])) for rate in (0.01, 0.1, 0.5)]
    at_the_end = Tuned("a", "own/val/head", {"lr": 0.5}, trials, 3, 1.0)
    inside = replace(at_the_end, method="b", chosen={"lr": 0.1})
    assert tuning_notes([at_the_end, inside, replace(at_the_end, method="c")]) == [
        "a, c chose the smallest or largest lr: a wider range may do better"
    ]


def test_of_equals_the_first_named_is_chosen() -> None:
    asked = study(["fedavg", "local"], {"lr": [0.1, 0.01, 0.001]})
    assert isinstance(asked.tuning, Tuning)
    same = asked.tuning.choices(results_of(asked))
    assert {one.chosen["lr"] for one in same.values()} == {0.1}
    better = asked.tuning.choices(results_of(asked, lr0_001=60.0))
    assert {one.chosen["lr"] for one in better.values()} == {0.001}


@pytest.mark.parametrize("study", ["tune", "choose-k"])
def test_clients_that_can_hold_nothing_out_are_named_before_anything_is_played(study: str) -> None:
    split = Split("iid", 0.1, 1, balance=True, ways=3, half_width=0, shots=5, test_shots=5)
    everybody = federate(load("digits", train_size=60), split, 3, 0, 0.0)
    small = replace(everybody.clients[1], train=everybody.clients[1].train.take(torch.tensor([0])))
    federation = replace(everybody, clients=(everybody.clients[0], small, everybody.clients[2]))
    name = "federation:/tmp/one-sample"
    give(name, federation)
    experiment = Experiment(method="mp-fedcl", dataset=name, split="custom", clients=3, rounds=1, val_fraction=0.2)
    asked: Any = ComparisonStudy(["fedavg"], replace(experiment, method="fedavg"), 1, tune={"lr": [0.01, 0.1]})
    if study == "choose-k":
        asked = ChoiceStudy.up_to(2, experiment, 1)
    with pytest.raises(UserError, match="--val-fraction: of 1 clients, such as client 1, no sample can be held out"):
        asked.begin(None)
