"""The runs that ask whether FedSC helps change one thing at a time, and go on where they stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from torch import nn

from benchmarks import question
from protofed.experiment import Experiment
from protofed.models.layers import BatchNorm
from protofed.runs.folder import RunFolder
from protofed.studies.study import SEEDS
from protofed.studies.workers import Task
from tests.support.made_rounds import a_round

MACHINE = {"data_dir": "data"}
NID1 = question.SETUPS["resnet10, nid1"]


PROTOCOL = {
    **{"dataset": "cifar10", "train_size": 10_000, "split": "nid1", "alpha": 0.2, "clients": 10, "model": "resnet10"},
    **{"rounds": 30, "epochs": 2, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    "augment": "crop-flip",
}
PAPER = {"neighbours": 2, "temperature": 0.05, "rpcl_weight": 1.0, "cpdr_weight": 1.0}


@pytest.mark.parametrize("name", [name for name in question.SETUPS if not name.startswith("MNIST")])
def test_a_run_on_cifar10_has_the_reduced_protocol_but_for_what_it_says(name: str, tmp_path: Path) -> None:
    setup = question.SETUPS[name]
    for label, tasks in question.tasks(setup, MACHINE, tmp_path).items():
        method, params = setup.runs[label]
        for seed, task in enumerate(tasks):
            values = asdict(task.experiment)
            assert {key: values[key] for key in PROTOCOL} == {**PROTOCOL, **setup.changes}
            assert (values["method"], values["seed"]) == (method, seed)
            assert values["params"] == ({} if method == "fedavg" else {**PAPER, **params})


def test_no_two_runs_are_the_same(tmp_path: Path) -> None:
    tasks = [
        task
        for name, setup in question.SETUPS.items()
        for some in question.tasks(setup, MACHINE, tmp_path / name).values()
        for task in some
    ]
    assert len({str(task.experiment) for task in tasks}) == len({task.folder for task in tasks}) == len(tasks)


def test_the_models_differ_in_their_norms_alone() -> None:
    group, batch = question.group_norm((3, 8, 8), 10), question.batch_norm((1, 8, 8), 10)
    kinds = [[type(layer) for layer in model.modules()] for model in (group, batch)]
    assert BatchNorm not in kinds[0]
    assert kinds[0].count(nn.GroupNorm) == 12  # as many as ResNet-10 has convolutions
    assert kinds[1].count(BatchNorm) == 3


def test_results_are_put_beside_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"dataset": "digits", "train_size": 60, "rounds": 1, "epochs": 1, "clients": 2, "model": "mlp"}
    runs = {name: question.EVERY_WAY[name] for name in ("fedavg", "last-epoch")}
    short = replace(NID1, changes={**small, "split": "iid", "precision": "float32"}, runs=runs)
    monkeypatch.setattr(question, "SETUPS", {"short": short})
    monkeypatch.setattr(question, "RESULTS", tmp_path)
    (tmp_path / "fedsc-question.json").write_text('{"other": {}}')
    question.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "runs")])
    known = json.loads((tmp_path / "fedsc-question.json").read_text())
    assert known["other"] == {}
    scores = {name: [_score(tmp_path / f"runs/short/{name}/seed{seed}") for seed in range(SEEDS)] for name in runs}
    assert known["short"] == scores
    assert known[question.REFUSED] == {"short": {name: [0] * SEEDS for name in runs}}


def test_refused_uploads_are_counted_by_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [a_round(1, left_out={3: "refused", 4: "refused"}), a_round(2), a_round(3)]
    monkeypatch.setattr(RunFolder, "played", lambda _: rounds)
    assert question._refusals(Task(Experiment(), tmp_path)) == 1


def _score(run: Path) -> float:
    result = json.loads((run / "result.json").read_text())
    return round(float(result["accuracy"][question.SCORE]["last"]), 2)
