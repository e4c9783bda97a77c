"""What can be seen of runs from their files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.report import watch
from protofed.report.terminal import console
from protofed.report.watch import curve, look, table
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.server.round import Round
from protofed.studies.choose_k import ChoiceStudy
from protofed.studies.comparison import ComparisonStudy
from protofed.studies.reproduction import ReproductionStudy
from protofed.studies.study import Study
from protofed.studies.sweeps import SweepStudy
from tests.support.made_rounds import a_round

EXPERIMENT = Experiment(method="fedproto", rounds=4)


def line(number: int, **accuracy: float) -> Round:
    """What a round leaves behind, as far as a watcher is concerned."""
    return a_round(number, seconds=2.0, loss=3.0 / number, accuracy=accuracy)


def begin(path: Path, experiment: Experiment = EXPERIMENT, rounds: int = 2) -> RunFolder:
    """A run that has played some rounds."""
    folder = RunFolder.create(path, experiment)
    for number in range(1, rounds + 1):
        folder.append_round(line(number, **{"own/own/head": 40.0 + number, "own/own/nearest": 50.0 + number}))
    return folder


def ask(path: Path, study: Study[Any]) -> Path:
    """The folder of a study, none of whose runs has begun."""
    path.mkdir()
    study.config(path).write_text(study.to_yaml())
    return path


def text_of(path: Path) -> str:
    """The table as a terminal has it."""
    shown = console()
    with shown.capture() as capture:
        shown.print(table(look(path)))
    return capture.get()


def test_a_run_in_progress(tmp_path: Path) -> None:
    folder = begin(tmp_path / "run")
    with folder:
        view = look(tmp_path / "run")
        shown = text_of(tmp_path / "run")
    (run,) = view.runs
    assert (run.name, run.done, run.rounds, run.losses) == ("run", 2, 4, [3.0, 1.5])
    assert (run.score, run.scores) == ("own/own/nearest", [51.0, 52.0])
    assert (run.seconds_left, run.state, view.ended) == (4.0, "going on", False)
    assert look(tmp_path / "run").runs[0].state == "stopped"  # nobody plays it
    for part in ("2/4", "1.500", "█▁", "▁█", "52.0", "4 s", "own/own/head"):
        assert part in shown


def test_a_line_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    folder = begin(tmp_path / "run")
    with folder.rounds.open("a") as file:
        file.write('{"round": 3, "sec')
    before = folder.rounds.read_bytes()
    assert look(folder.path).runs[0].done == 2
    assert folder.rounds.read_bytes() == before


def test_a_run_before_its_first_round(tmp_path: Path) -> None:
    begin(tmp_path / "run", rounds=0)
    (run,) = look(tmp_path / "run").runs
    assert (run.done, run.seconds_left, run.scores) == (0, None, [])
    assert "0/4" in text_of(tmp_path / "run")


def test_a_comparison_ends_with_its_table(tmp_path: Path) -> None:
    folder = ask(tmp_path / "both", ComparisonStudy(["local", "fedavg"], EXPERIMENT, 1))
    first = begin(folder / "local-seed0", replace(EXPERIMENT, method="local"))
    first.result.write_text("{}")
    (folder / ".fedavg-seed0.draft-1").mkdir()
    (folder / ".fedavg-seed0.draft-1" / "config.yaml").write_text("half")
    view = look(folder)
    assert ([run.name for run in view.runs], view.waiting, view.ended) == (["local-seed0"], 1, False)
    assert "1 not begun" in text_of(folder)
    begin(folder / "fedavg-seed0").result.write_text("{}")
    assert (look(folder).waiting, look(folder).ended) == (0, False)
    (folder / "compare.json").write_text("{}")
    assert look(folder).ended


def test_a_comparison_of_a_single_run_that_has_not_begun(tmp_path: Path) -> None:
    assert "1 not begun" in text_of(ask(tmp_path / "one", ComparisonStudy(["local"], EXPERIMENT, 1)))


MINE = "elsewhere/mine.py:Mine"


@pytest.mark.parametrize(
    ("study", "waiting"),
    [
        (SweepStudy(["local", "mp-fedcl"], EXPERIMENT, 2, grid={"alpha": [0.1, 1], "k": [1, 2, 3]}), 2 * (2 + 6) - 1),
        (SweepStudy([MINE], EXPERIMENT, 2, grid={"alpha": [0.1, 1]}), 3),
        (SweepStudy([MINE], EXPERIMENT, 2, grid={"k": [1, 2]}), 0),  # only its code knows whether it has a k
        (ComparisonStudy([MINE, "local"], EXPERIMENT, 2), 3),
        (ChoiceStudy.up_to(4, replace(EXPERIMENT, method="mp-fedcl", val_fraction=0.2), 3), 11),
        (ReproductionStudy("mp-fedcl/table6", "stand-in", ["mnist"], ["fedavg", "mp-fedcl"], 2), 3),
        (ReproductionStudy("mp-fedcl/table6", None, ["mnist"], ["fedavg"]), 0),  # its data is not here
    ],
)
def test_a_study_ends_with_its_table(tmp_path: Path, study: Study[Any], waiting: int) -> None:
    folder = ask(tmp_path / "several", study)
    run = begin(folder / "alpha=1/local-seed0")
    assert "alpha=1/local-seed0" in text_of(folder)
    run.result.write_text("{}")
    assert (look(folder).waiting, look(folder).ended) == (waiting, False)
    (folder / study.end).write_text("{}")
    assert look(folder).ended == (waiting == 0)


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    folder = ask(tmp_path / "both", ComparisonStudy(["local", "fedavg"], EXPERIMENT, 1))
    begin(folder / "local-seed0", replace(EXPERIMENT, method="local")).result.write_text("{}")
    damaged = begin(folder / "fedavg-seed0")
    damaged.rounds.write_text('{"round": 1, "loss": Infinity}\n')
    (folder / "compare.json").write_text("{}")
    view = look(folder)
    assert {run.name: run.state for run in view.runs} == {"local-seed0": "ended", "fedavg-seed0": "unreadable"}
    assert view.ended
    shown = text_of(folder)
    assert "fedavg-seed0 cannot be read: " in shown
    assert "rounds.jsonl" in shown
    with pytest.raises(UserError, match=r"rounds\.jsonl"):  # there is nothing else to show
        look(damaged.path)


def test_of_many_runs_those_that_go_on_or_failed_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST", 1)
    folder = ask(tmp_path / "sweep", SweepStudy(["local"], EXPERIMENT, 1, grid={"alpha": [0.1, 1, 2]}))
    begin(folder / "first").result.write_text("{}")
    second = begin(folder / "second")
    shown = text_of(folder)
    assert "1 ended, 1 not begun" in shown
    assert "second" in shown
    FailedRun("local", 0, "diverged", "the loss became nan", round=2).write(second.path)
    assert "diverged (round 2)" in text_of(folder)
    assert "first" not in shown


def test_the_code_of_a_users_method_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    begin(tmp_path / "run", replace(EXPERIMENT, method=f"{tmp_path}/mine.py:Mine"))
    assert look(tmp_path / "run").runs[0].score == "own/own/head"


def test_a_name_is_no_markup(tmp_path: Path) -> None:
    begin(tmp_path / "[bold]run")
    assert "[bold]run" in text_of(tmp_path / "[bold]run")


def test_curves() -> None:
    assert curve([]) == ""
    assert curve([2.0]) == "▁"
    assert curve([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    long = curve(list(range(1000)))
    assert (len(long), long[0], long[-1]) == (8, "▁", "█")


@pytest.mark.parametrize("name", ["empty", "nothing"])
def test_another_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"it has none of config\.yaml, compare\.yaml, "):
        look(tmp_path / name)
