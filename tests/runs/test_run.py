"""The loop over rounds: when models are tested, and what holds for the whole process."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.errors import UserError
from protofed.evaluation.accuracy import validation_name
from protofed.evaluation.motion import Motion
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Lines, Progress, Standing
from protofed.runs.result import Result
from protofed.runs.run import Interrupted, new_run
from tests.support.command_line import result_of, rounds_of
from tests.support.made_rounds import a_round
from tests.support.nets import Noisy, Plain, play


def experiment(**settings: Any) -> Experiment:
    given: dict[str, Any] = {
        "method": "fedavg",
        "model": "cnn",
        "device": "cpu",
        "train_size": 120,
        "clients": 3,
        "rounds": 5,
    }
    return Experiment(**(given | settings))


def evaluated(path: Path) -> list[int]:
    """The rounds with accuracies."""
    lines = rounds_of(path)
    for line in lines:
        assert bool(line["accuracy"]) == bool(line["per_client"])
    return [line["round"] for line in lines if line["accuracy"]]


class CtrlC(Progress):
    """Presses it at the end of a round, so that the next is the last."""

    def __init__(self, after: int) -> None:
        self.after = after

    def tell(self, standing: Standing) -> None:
        """A round is over."""
        if standing.done == self.after and standing.loss is not None:
            signal.raise_signal(signal.SIGINT)


def test_models_are_tested_every_so_many_rounds_and_at_the_end(tmp_path: Path) -> None:
    every, some = experiment(), experiment(eval_every=2)
    for name, plan in (("every", every), ("some", some)):
        run = new_run(plan)
        run.play(RunFolder.create(tmp_path / name, run.experiment), Progress())
    assert evaluated(tmp_path / "some") == [2, 4, 5]
    for one, other in zip(rounds_of(tmp_path / "every"), rounds_of(tmp_path / "some"), strict=True):
        assert one["loss"] == other["loss"]
        assert not other["accuracy"] or other["per_client"] == one["per_client"]
    result = Result.read(tmp_path / "some").accuracy["own/own/head"]
    values = [line["accuracy"]["own/own/head"] for line in rounds_of(tmp_path / "every")]
    assert result.last == values[4]
    assert result.last5 == pytest.approx((values[1] + values[3] + values[4]) / 3)
    assert result.best == max(values[1], values[3], values[4]) == values[result.best_round - 1]


def test_the_round_that_uses_up_the_time_is_tested(tmp_path: Path) -> None:
    run = new_run(experiment(eval_every=3, time_budget=1e-6))
    run.play(RunFolder.create(tmp_path / "run", run.experiment), Progress())
    assert evaluated(tmp_path / "run") == [1]
    assert result_of(tmp_path / "run")["stopped"] == "time budget"
    (tmp_path / "run/result.json").unlink()  # killed just before: the end is still the end
    again = new_run(run.experiment)
    again.restore(RunFolder.open(tmp_path / "run"))
    assert again.play(RunFolder.open(tmp_path / "run"), Progress()).accuracy


def stopped_and_resumed(tmp_path: Path, plan: Experiment, after: int) -> None:
    """The same run in `whole`, and in `cut` with a Ctrl-C: it must come to the same end by the same rounds."""
    new_run(plan).play(RunFolder.create(tmp_path / "whole", plan), Progress())
    with pytest.raises(Interrupted, match=f"round {after} of {plan.rounds}"):
        new_run(plan).play(RunFolder.create(tmp_path / "cut", plan), CtrlC(after - 1))
    assert evaluated(tmp_path / "cut")[-1] == after
    again, folder = new_run(plan), RunFolder.open(tmp_path / "cut")
    again.restore(folder)
    again.play(folder, Progress())
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")
    cut, whole = (RunFolder.open(tmp_path / name).played() for name in ("cut", "whole"))
    assert [replace(one, seconds=0) for one in cut] == [replace(one, seconds=0) for one in whole]
    kept = [vars(Motion.read(tmp_path / name / "motion.safetensors")) for name in ("cut", "whole")]
    for value, other in zip(*(one.values() for one in kept), strict=True):
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_ctrl_c_tests_the_last_round_and_the_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    stopped_and_resumed(tmp_path, experiment(eval_every=4, rounds=6), after=2)


def test_what_a_backdoor_does_is_asked_where_the_uninterrupted_run_asks(tmp_path: Path) -> None:
    stopped_and_resumed(tmp_path, experiment(method="fedavg", attack="backdoor", eval_every=5, rounds=6), after=2)


def test_a_resumed_run_has_the_same_metrics(tmp_path: Path) -> None:
    plan = experiment(metrics="f1,auc,ece,few,class,worst10", val_metric="ece", val_fraction=0.2, patience=2)
    stopped_and_resumed(tmp_path, plan, after=2)
    result = Result.read(tmp_path / "cut")
    errors = [(one.round, one.accuracy["own/own/head:ece"]) for one in result.history]
    found = result.accuracy["own/own/head:ece"]
    assert (found.best_round, found.best) == min(errors, key=lambda pair: pair[1])
    assert len({value for _, value in errors}) > 1
    assert result.accuracy["own/own/head:worst10"].last == min(result.accuracy["own/own/head"].per_client)
    undefined = {name: one.undefined for name, one in result.accuracy.items() if one.undefined}
    assert undefined
    rows = [(row["client"], row["score"]) for row in result.rows() if row["round"] == result.rounds]
    assert not {(client, name) for name, who in undefined.items() for client in who} & {*rows}
    assert all((client, "own/own/head") in rows for client in range(result.clients))
    assert "NaN" not in (tmp_path / "cut/rounds.jsonl").read_text() + (tmp_path / "cut/result.json").read_text()


@pytest.mark.parametrize("kind", ["sudden", "gradual"])
def test_a_drift_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    stopped_and_resumed(tmp_path, experiment(drift=kind, rounds=4), after=3)
    assert "drift" in result_of(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["sudden", "gradual"])
def test_a_drift_is_tested_where_the_uninterrupted_run_tests_it(tmp_path: Path, kind: str) -> None:
    stopped_and_resumed(tmp_path, experiment(drift=kind, eval_every=5, rounds=6), after=2)


@pytest.mark.parametrize("kind", ["sudden", "gradual"])
def test_a_run_that_is_killed_before_its_end_is_written_ends_with_the_drifted_data(tmp_path: Path, kind: str) -> None:
    """Its last round is in the checkpoint, so that no further round moves the data."""
    run = new_run(experiment(drift=kind, rounds=4))
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    run.play(folder, Progress())
    whole = Snapshot.read(folder.snapshot)
    folder.snapshot.unlink()
    folder.result.unlink()
    again = new_run(folder.experiment())
    again.restore(folder)
    again.play(folder, Progress())
    assert run.drift is not None
    assert torch.equal(whole.holds, run.drift.at(3).counts)
    for name, value in vars(Snapshot.read(folder.snapshot)).items():
        wanted = getattr(whole, name)
        assert torch.equal(value, wanted) if isinstance(value, torch.Tensor) else value == wanted, name


def test_progress_copes_with_rounds_that_are_not_tested(capsys: pytest.CaptureFixture[str]) -> None:
    new_run(experiment(eval_every=2, rounds=3)).play(None, Lines())
    said = [line for line in capsys.readouterr().err.splitlines() if ": round" in line]
    assert ["%" in line for line in said] == [False, True, True]


def test_what_is_sent_to_all_is_measured_once_and_counted_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    run = play("fedavg", rounds=1, model=Plain, participation=1.0)
    asked: list[Broadcast] = []
    size = Broadcast.size

    def note(message: Broadcast) -> int:
        asked.append(message)
        return size(message)

    monkeypatch.setattr(Broadcast, "size", note)
    line = run.play_round()
    assert len(asked) == 1
    assert line.bytes_down == 5 * size(asked[0])


@pytest.mark.parametrize(("precision", "kept"), [("float64", torch.float64), ("bf16", torch.float32)])
def test_weights_are_kept_in_full_precision(precision: str, kept: torch.dtype) -> None:
    initial = new_run(experiment(precision=precision)).engine.groups[0].own.initial
    assert {value.dtype for value in initial.values() if value.is_floating_point()} == {kept}


def test_a_run_says_how_it_was_made() -> None:
    torch.set_num_threads(2)
    found = new_run(experiment()).experiment
    assert (found.threads, found.device) == (2, "cpu")
    assert found.engine in ("sequential", "stacked")
    given = new_run(experiment(threads=1, engine="sequential"))
    assert (given.experiment.threads, given.experiment.engine) == (1, "sequential")
    assert given.experiment.width == given.engine.width


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_written_before_their_checkpoint(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the state file appears, rounds.jsonl holds the rounds it stands for."""
    run = play("fedproto", engine=engine, rounds=0, model=Noisy)
    run.experiment = experiment(rounds=3)
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    seen = []
    save = folder.checkpoint.save

    def check(*state: Any) -> None:
        seen.append((state[0].rounds, len(rounds_of(folder.path))))
        save(*state)

    monkeypatch.setattr(folder.checkpoint, "save", check)
    run.play(folder, Progress())
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert json.loads(folder.result.read_text())["rounds"] == 3


PATIENT: dict[str, Any] = {"patience": 2, "val_fraction": 0.2, "rounds": 40, "lr": 1e-4}
"""With a rate at which hardly anything is learnt, so that patience is soon over."""


def test_patience_ends_a_run_whose_validation_accuracy_does_not_rise(tmp_path: Path) -> None:
    run = new_run(experiment(**PATIENT))
    result = run.play(RunFolder.create(tmp_path / "run", run.experiment), Progress())
    assert result.stopped == "patience"
    values = [played.accuracy["global/val/head"] for played in result.history]
    best = values.index(max(values))
    assert len(values) == best + 3
    for upto in range(1, len(values)):  # it was not over before
        assert upto - 1 - values[:upto].index(max(values[:upto])) < 2
    assert Result.read(tmp_path / "run").stopped == "patience"


@pytest.mark.parametrize("every", [1, 2])
def test_a_patient_run_that_was_interrupted_ends_where_the_uninterrupted_one_does(tmp_path: Path, every: int) -> None:
    stopped_and_resumed(tmp_path, experiment(**PATIENT, eval_every=every), after=2)


def test_patience_counts_the_evaluations_that_are_due() -> None:
    run = new_run(experiment(**{**PATIENT, "patience": 1}, eval_every=2))
    values = {1: 10.0, 2: 50.0, 3: 40.0, 4: 50.0}
    for number, value in values.items():
        assert not run.over()
        run.history.append(a_round(number, accuracy={"global/val/head": value}))
    assert run.ended_by() == "patience"  # round 4 is not above round 2, and neither 1 nor 3 was due
    run.history[-1] = a_round(4, accuracy={"global/val/head": 50.1})
    assert not run.over()


def test_patience_waits_for_a_lower_calibration_error() -> None:
    run = new_run(experiment(**{**PATIENT, "patience": 2}, val_metric="ece"))
    for number, error in enumerate([9.0, 8.0, 7.0, 7.5], start=1):
        run.history.append(a_round(number, accuracy={"global/val/head": 10.0 * number, "global/val/head:ece": error}))
        assert not run.over()
    run.history.append(a_round(5, accuracy={"global/val/head": 99.0, "global/val/head:ece": 7.0}))
    assert run.ended_by() == "patience"


def test_patience_needs_validation_data() -> None:
    with pytest.raises(UserError, match="invalid value '3' for --patience: it needs validation data"):
        new_run(experiment(patience=3))


def test_the_validation_score_is_that_of_the_methods_rule() -> None:
    known = ["own/val/head", "own/val/nearest", "own/own/nearest", "own/val/head:ece", "own/val/nearest:f1"]
    assert validation_name("own/own/nearest", "accuracy", known) == "own/val/nearest"
    assert validation_name("global/domain/head", "accuracy", known) == "own/val/head"
    assert validation_name("own/own/nearest", "f1", known) == "own/val/nearest:f1"
    assert validation_name("own/own/nearest", "ece", known) == "own/val/head:ece"
