"""A run that fails takes nothing else with it: it is said, in no number, and can be played again."""

from __future__ import annotations

import csv
import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from protofed.api import compare, sweep
from protofed.engines.base import Engine
from protofed.errors import DivergedError, UserError
from protofed.internal import tensor_files
from protofed.methods import METHODS, method_class
from protofed.report.html import gather
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.studies import workers
from protofed.studies.comparison import ComparisonStudy, rows_of
from tests.support.command_line import invoke, succeed

TINY: dict[str, Any] = {"model": "cnn", "train_size": 150, "clients": 3, "rounds": 3, "device": "cpu", "threads": 1}
FLAGS = (
    *("--jobs", "1", "--model", "cnn", "--train-size", "150", "--clients", "3", "--rounds", "3"),
    *("--device", "cpu", "--engine", "sequential"),
)


class Diverging:
    """Has the runs of a method and seed fail in a round, until it is told to stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *which: tuple[str, int], at: int = 2) -> None:
        self.which, self.at, self.on = set(which), at, True
        played = Engine.round

        def round(engine: Engine, who: Any, broadcast: Any, clock: Any) -> Any:
            if self.on and (engine.method.name, engine.experiment.seed) in self.which and clock.round + 1 == self.at:
                raise DivergedError.at(engine.method.name, 1, self.at, 4, float("nan"))
            return played(engine, who, broadcast, clock)

        monkeypatch.setattr(Engine, "round", round)


def test_a_diverging_run_is_in_the_table_and_in_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Diverging(monkeypatch, ("fedproto", 1), ("local", 0), ("local", 1))
    methods = ("--method", "fedavg,fedproto,local")
    outcome = invoke(tmp_path, "compare", *methods, "--seeds", "2", *FLAGS, "--out", "c")
    assert outcome.code == 3
    assert "diverged (round 2), 1 of 2" in outcome.out
    assert "failed: local seed 0: the loss of client 1 became nan in round 2, step 4; try a smaller --lr" in outcome.err
    assert "protofed resume c --retry-failed" in outcome.err
    values = json.loads((tmp_path / "c/compare.json").read_text())
    rows = {row["method"]: row for row in values["rows"]}
    assert (len(rows["fedavg"]["rounds"]), len(rows["fedproto"]["rounds"]), rows["local"]["rounds"]) == (2, 1, [])
    assert rows["fedproto"]["failed"] == ["diverged (round 2)"]
    assert rows["local"]["accuracy"] == {}
    assert {(one["method"], one["seed"], one["client"], one["round"]) for one in values["failures"]} == {
        ("fedproto", 1, 1, 2),
        ("local", 0, 1, 2),
        ("local", 1, 1, 2),
    }
    assert not [test for test in values["tests"] if "local" in (test["best"], test["other"])]
    lines = list(csv.DictReader((tmp_path / "c/compare.csv").open()))
    assert [(line["mean"], line["seeds"]) for line in lines if line["quantity"] == "failed"] == [("1", "2"), ("2", "2")]
    data = gather([tmp_path / "c"])
    summary = {row["label"]: row for row in data["summary"]}
    assert (summary["fedproto"]["seeds"], summary["fedproto"]["runs"]) == (1, 2)
    assert (summary["local"]["cells"], summary["local"]["failed"][0]) == ({}, "diverged (round 2)")
    assert len(data["incomplete"]) == 3
    assert (tmp_path / "c/report.html").is_file()


def test_resume_takes_a_failure_as_an_ending_and_plays_it_again_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging = Diverging(monkeypatch, ("fedavg", 0))
    compared = ("compare", "--method", "fedavg,local", "--seeds", "1", *FLAGS, "--out", "c")
    assert invoke(tmp_path, *compared).code == 3
    diverging.on = False
    assert invoke(tmp_path, "resume", "c", "--quiet").code == 3
    outcome = invoke(tmp_path, "resume", "c/fedavg-seed0")
    assert (outcome.code, "has failed: fedavg seed 0" in outcome.err) == (1, True)
    assert invoke(tmp_path, "resume", "c", "--retry-failed", "--quiet").code == 0
    assert FailedRun.read(tmp_path / "c/fedavg-seed0") is None
    (tmp_path / "other").mkdir()
    succeed(tmp_path / "other", *compared)
    first, second = (
        json.loads((place / "c/fedavg-seed0/result.json").read_text()) for place in (tmp_path, tmp_path / "other")
    )
    assert first["accuracy"] == second["accuracy"]  # as if it had never failed


@pytest.mark.parametrize("file", ["config.yaml", "rounds.jsonl", "result.json", "failure.json"])
def test_a_damaged_run_folder_takes_no_other_run_with_it(file: str, tmp_path: Path) -> None:
    compared = ("compare", "--method", "fedavg,local", "--seeds", "1", *FLAGS, "--out", "c")
    succeed(tmp_path, *compared)
    damaged = tmp_path / "c/fedavg-seed0" / file
    before = damaged.read_bytes() if damaged.exists() else None
    damaged.write_text("[1\n")
    if file != "result.json":
        (tmp_path / "c/fedavg-seed0/result.json").unlink()
    (tmp_path / "c/local-seed0/result.json").unlink()  # it is still to be finished
    outcome = invoke(tmp_path, "resume", "c", "--quiet")
    assert outcome.code == 3
    assert f"failed: fedavg seed 0: invalid value 'c/fedavg-seed0{'/' * (file != 'rounds.jsonl')}" in outcome.err
    assert (tmp_path / "c/local-seed0/result.json").is_file()
    assert [line.split()[0] for line in outcome.out.splitlines() if line.startswith(("fedavg", "local"))] == [
        "fedavg",
        "local",
    ]
    (row,) = (row for row in json.loads((tmp_path / "c/compare.json").read_text())["rows"] if row["method"] == "fedavg")
    assert (row["failed"], row["rounds"]) == (["failed"], [])
    assert "fedavg-seed0 cannot be read" in (tmp_path / "c/report.html").read_text()
    assert ("unreadable" in succeed(tmp_path, "watch", "c").out) == (file != "result.json")  # of which it reads nothing
    if before is None:
        damaged.unlink()
    else:
        damaged.write_bytes(before)
    succeed(tmp_path, "resume", "c", "--quiet")  # as if nothing had been


def test_no_error_of_the_report_takes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise UserError("FILE", "x", "it cannot be drawn")

    monkeypatch.setattr("protofed.report.html.write_report", broken)
    outcome = invoke(tmp_path, "compare", "--method", "local", "--seeds", "1", *FLAGS, "--quiet", "--out", "c")
    assert outcome.code == 0
    assert "own/own/head" in outcome.out
    assert outcome.err == "no report: invalid value 'x' for FILE: it cannot be drawn\n"


def test_a_study_in_which_nothing_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Diverging(monkeypatch, ("fedavg", 0), at=1)
    outcome = invoke(tmp_path, "compare", "--method", "fedavg", "--seeds", "1", *FLAGS, "--out", "c")
    assert outcome.code == 1
    assert "no run came to its end" in outcome.out
    assert (tmp_path / "c/compare.json").is_file()
    assert ComparisonStudy.open(tmp_path / "c").methods == ["fedavg"]


def test_a_sweep_says_which_setting_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Diverging(monkeypatch, ("fedavg", 1))
    found = sweep({"lr": [0.01, 0.02]}, ["fedavg"], 2, jobs=1, out=tmp_path / "s", engine="sequential", **TINY)
    assert [len(cell.row.rounds) for cell in found.cells] == [1, 1]
    assert [failed.name for failed in found.failures] == ["fedavg seed 1, lr=0.01", "fedavg seed 1, lr=0.02"]
    lines = list(csv.DictReader((tmp_path / "s/sweep.csv").open()))
    assert sum(line["quantity"] == "failed" for line in lines) == 2


def test_an_error_in_a_method_is_a_failure_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a mistake of the author's")

    monkeypatch.setattr(method_class("fedprox"), "loss", broken)
    found = compare(["fedprox", "local"], 1, jobs=1, engine="sequential", **TINY)
    (failed,) = found.failures
    assert (failed.kind, failed.reason, failed.round) == ("failed", "ValueError: a mistake of the author's", None)
    assert "broken" in capsys.readouterr().err  # where it happened


def test_a_worker_that_is_killed_takes_one_run_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on with the others."""
    killed: list[str] = []
    play = workers.Worker.play

    def kill_once(worker: workers.Worker, task: workers.Task, tell: Any) -> Any:
        if not killed:
            killed.append(task.experiment.method)
            worker.process.kill()
        return play(worker, task, tell)

    monkeypatch.setattr(workers.Worker, "play", kill_once)
    monkeypatch.setattr(workers, "START_UP", 0.0)
    options = TINY | {"rounds": 12, "engine": "sequential"}
    found = compare(["fedavg", "local", "fedproto", "fedprox"], 3, jobs=2, out=tmp_path / "c", **options)
    (failed,) = found.failures
    assert (failed.kind, "was killed (SIGKILL)" in failed.reason, "--jobs" in failed.advice) == ("died", True, True)
    assert len(found.results) == 11


def test_runs_that_diverge_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of fedncm and fed3r nobody trains, so no rate is too high for them."""
    elsewhere = threading.Event()
    play, played = workers.Worker.play, Engine.round

    def noted(worker: workers.Worker, task: workers.Task, tell: Any) -> Any:
        elsewhere.set()
        return play(worker, task, tell)

    def late(*arguments: Any) -> Any:
        assert elsewhere.wait(300)  # this process leaves runs to the other one
        return played(*arguments)

    monkeypatch.setattr(workers.Worker, "play", noted)
    monkeypatch.setattr(Engine, "round", late)
    monkeypatch.setattr(workers, "START_UP", 0.0)
    trained, computed = ["fedavg", "local", "fedprox", "fedproto"], ["fedncm", "fed3r"]
    methods = ("--method", ",".join([*trained, *computed]), "--lr", "1e6", "--seeds", "2")
    outcome = invoke(tmp_path, "compare", *methods, "--jobs", "2", *FLAGS[2:], "--out", "c")
    assert outcome.code == 3
    rows = {row["method"]: row for row in json.loads((tmp_path / "c/compare.json").read_text())["rows"]}
    assert [method for method, row in rows.items() if row["rounds"]] == computed
    assert all(why.startswith("diverged (round ") for method in trained for why in rows[method]["failed"])
    assert (tmp_path / "c/report.html").is_file()


def test_a_single_run_that_diverges_says_so_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Diverging(monkeypatch, ("fedavg", 0))
    outcome = invoke(tmp_path, "run", "--method", "fedavg", *FLAGS[2:], "--out", "r", "--quiet")
    assert (outcome.code, len(outcome.err.splitlines())) == (1, 1)
    failed = FailedRun.read(tmp_path / "r")
    assert failed is not None
    assert (failed.method, failed.seed, failed.client, failed.round, failed.kind) == ("fedavg", 0, 1, 2, "diverged")
    assert len(RunFolder.open(tmp_path / "r").played()) == 1
    shown = invoke(tmp_path, "watch", "r")
    assert "diverged (round 2)" in shown.out


def test_rows_leave_out_what_failed() -> None:
    (row,) = rows_of([FailedRun("mine", 0, "died", "it was killed"), FailedRun("mine", 1, "failed", "no", round=3)])
    assert (row.failed, row.seeds, row.rounds, row.score) == (["died", "failed (round 3)"], 2, [], "own/own/head")


@pytest.mark.slow  # as many runs as there are methods
@pytest.mark.parametrize(("rate", "diverge"), [("0.5", 1), ("5", len(METHODS) // 2 + 1)])
def test_all_methods_with_a_rate_that_is_too_high(rate: str, diverge: int, tmp_path: Path) -> None:
    """At 0.5 most models are worthless but finite, which a report must survive too; at 5 most runs fail."""
    words = ("--method", ",".join(METHODS), "--lr", rate, "--public", "digit-domains", "--set", "public_images=64")
    where = ("--dataset", "digits", "--clients", "3", "--train-size", "300", "--model", "mlp", "--rounds", "5")
    how = ("--seeds", "1", "--jobs", "1", "--threads", "1", "--engine", "sequential", "--out", "c")
    outcome = invoke(tmp_path, "compare", *words, *where, *how)
    values = json.loads((tmp_path / "c/compare.json").read_text())
    assert outcome.code == 3
    assert [row["method"] for row in values["rows"]] == list(METHODS)
    assert all(row["rounds"] == [5] or row["failed"][0].startswith("diverged (round ") for row in values["rows"])
    assert len(values["failures"]) >= diverge
    for row in values["rows"]:
        assert all(0 <= value <= 100 for spread in row["accuracy"].values() for value in spread["values"])
        assert row["method"] in outcome.out
    (tmp_path / "c/report.html").unlink()
    again = invoke(tmp_path, "resume", "c", "--quiet")
    assert (again.code, again.out) == (3, outcome.out)
    written = (tmp_path / "c/report.html").read_bytes()
    assert succeed(tmp_path, "report", "c").out == "c/report.html\n"
    assert (tmp_path / "c/report.html").read_bytes() == written
    shown = succeed(tmp_path, "watch", "c").out  # which is over at once
    assert shown.count("diverged (round ") == len(values["failures"])
    retried = invoke(tmp_path, "resume", "c", "--quiet", "--retry-failed")
    assert json.loads((tmp_path / "c/compare.json").read_text())["failures"] == values["failures"]
    assert retried.code == 3


@pytest.mark.slow
def test_methods_whose_papers_weights_would_diverge_come_to_their_end_with_their_defaults(tmp_path: Path) -> None:
    words = ("--method", "fedavg,fedproto,mp-fedcl,fedplcc", "--dataset", "digit-domains", "--split", "domains")
    how = ("--clients", "4", "--model", "cnn", "--rounds", "8", "--seeds", "2")
    outcome = invoke(tmp_path, "compare", *words, *how, "--out", "c")
    assert outcome.code == 0, outcome.err
    values = json.loads((tmp_path / "c/compare.json").read_text())
    assert [row["rounds"] for row in values["rows"]] == [[8, 8]] * 4
    assert (tmp_path / "c/report.html").is_file()


@pytest.mark.parametrize("where", ["rounds", "checkpoint", "table"])
def test_a_full_disk_ends_a_study_in_one_line_and_it_goes_on_later(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def safetensors_full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        if where == "rounds":
            patch.setattr(RunFolder, "append_round", full)
        elif where == "checkpoint":
            patch.setattr(tensor_files, "save_file", safetensors_full)
        else:
            patch.setattr(Path, "write_text", full)
        outcome = invoke(tmp_path, "compare", "--method", "fedavg,local", "--seeds", "1", *FLAGS, "--out", "c")
    said = outcome.err.strip().splitlines()[-1]
    assert outcome.code in (1, 2)
    assert "Traceback" not in outcome.err
    if where == "table":  # nothing could be begun
        assert "No space left on device" in said
        return
    assert said == "the disk is full; what was written before is whole; continue with: protofed resume c"
    succeed(tmp_path, "resume", "c")
    assert len(json.loads((tmp_path / "c/compare.json").read_text())["runs"]) == 2
