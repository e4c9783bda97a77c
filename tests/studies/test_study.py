"""What every kind of study does: it is read back as written, knows and checks its runs, and writes its outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.runs.progress import Progress
from protofed.studies.choose_k import ChoiceStudy
from protofed.studies.comparison import ComparisonStudy
from protofed.studies.kinds import KINDS, kind_of
from protofed.studies.reproduction import ReproductionStudy
from protofed.studies.study import Study
from protofed.studies.sweeps import SweepStudy

SMALL = Experiment.from_mapping(
    {
        **{"model": "cnn", "device": "cpu", "engine": "sequential", "threads": 1, "train_size": 150},
        **{"clients": 3, "rounds": 1, "val_fraction": 0.2},
    }
)
STUDIES: list[Study[Any]] = [
    ComparisonStudy(["local", "mp-fedcl"], SMALL, 2, 1),
    SweepStudy(["local", "mp-fedcl"], SMALL, 1, 1, {"alpha": [0.1, 1], "k": [1, 2]}, "own/own/head"),
    ChoiceStudy.up_to(2, SMALL, 1, 1),
    ReproductionStudy(
        *("mp-fedcl/table6", "stand-in", ["mnist"], ["fedavg"], 1, 1),
        {"device": "cpu", "engine": "sequential", "threads": 1},
    ),
]
each = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.command)


def test_every_kind_is_here() -> None:
    assert {type(study) for study in STUDIES} == set(KINDS)


@each
def test_a_study_is_played_in_a_folder_that_says_what_it_is(tmp_path: Path, study: Study[Any]) -> None:
    folder = tmp_path / "study"
    assert study.begin(folder) == study  # its threads were given
    assert kind_of(folder) is type(study)
    assert type(study).open(folder) == study
    outcome = study.play(folder, Progress())
    for name, text in outcome.files().items():
        assert (folder / name).read_text() == text
    assert (folder / study.end).read_text() == outcome.to_json()
    played = {path.parent for path in folder.rglob("result.json")}
    assert played == {task.folder for task in study.tasks(folder)}
    assert study.size() == len(played)


@each
def test_threads_are_decided_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, study: Study[Any]) -> None:
    monkeypatch.setattr("protofed.studies.workers.cores", lambda: 6)
    text = study.to_yaml().replace("threads: 1", "threads: null").replace("jobs: 1", "jobs: 2")
    study.config(tmp_path).write_text(text)
    begun = type(study).open(tmp_path).begin(tmp_path / "new")
    threads = {task.experiment.threads for task in begun.tasks(None)}
    assert threads == {6 // min(2, len(begun.tasks(None)))}
    assert {task.experiment.threads for task in type(study).open(tmp_path / "new").tasks(None)} == threads


@each
def test_what_cannot_be_played_leaves_no_folder(tmp_path: Path, study: Study[Any]) -> None:
    study.config(tmp_path).write_text(study.to_yaml().replace("device: cpu", "device: abacus"))
    wrong = type(study).open(tmp_path)
    with pytest.raises(UserError, match="'abacus' for --device"):
        wrong.begin(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_another_folder_is_of_no_kind(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert kind_of(tmp_path) is None
