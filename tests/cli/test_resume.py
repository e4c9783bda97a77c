"""`protofed resume`: however a run ended, it goes on to the same result, to the last bit."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from protofed.experiment import Experiment
from protofed.internal.digests import parse_json
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Lines, Progress, Standing
from protofed.runs.run import new_run
from tests.support.command_line import TINY, finish, invoke, refused, result_of, rounds_of, start, succeed
from tests.support.killed import KillAfter, Killed

MOMENTS = random.Random(0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The same bits here as in a process with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def experiment(method: str, engine: str) -> Experiment:
    """Five rounds, a checkpoint every two, some clients absent, dropout."""
    return Experiment.from_mapping(
        {
            **{"method": method, "engine": engine, "model": "cnn", "device": "cpu", "participation": 0.7},
            **{"train_size": 150, "clients": 4, "rounds": 5, "checkpoint_every": 2},
        }
    )


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        ("fedproto", "sequential"),
        ("mp-fedcl", "stacked"),
        pytest.param("fedproto", "stacked", marks=pytest.mark.slow),
        pytest.param("mp-fedcl", "sequential", marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_after_any_round_goes_on_to_the_same_result(tmp_path: Path, method: str, engine: str) -> None:
    whole = experiment(method, engine)
    new_run(whole).play(RunFolder.create(tmp_path / "whole", whole), Progress())
    for last in range(1, 6):
        cut = tmp_path / f"cut-{last}"
        with pytest.raises(Killed):
            new_run(whole).play(RunFolder.create(cut, whole), KillAfter(last))
        assert len(rounds_of(cut)) == last
        succeed(tmp_path, "resume", cut.name, "--quiet")
        assert result_of(cut) == result_of(tmp_path / "whole")
        assert [line["round"] for line in rounds_of(cut)] == [1, 2, 3, 4, 5]


def _cut_line(run: Path) -> None:
    with (run / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "seco')


def _no_checkpoint(run: Path) -> None:
    (run / "checkpoint/state.safetensors").unlink()


def _drafts(run: Path) -> None:
    (run / "checkpoint/.state.draft").write_bytes(b"half a checkpoi")
    (run / ".rounds.jsonl.draft").write_text('{"rou')
    (run / ".result.json.draft").write_text("{")


@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl"])
@pytest.mark.parametrize("damage", [_cut_line, _no_checkpoint, _drafts])
def test_what_a_kill_in_the_middle_of_a_write_leaves_does_no_harm(
    tmp_path: Path, method: str, damage: Callable[[Path], None]
) -> None:
    whole = experiment(method, "stacked")
    new_run(whole).play(RunFolder.create(tmp_path / "whole", whole), Progress())
    with pytest.raises(Killed):
        new_run(whole).play(RunFolder.create(tmp_path / "cut", whole), KillAfter(3))
    damage(tmp_path / "cut")
    succeed(tmp_path, "resume", "cut", "--quiet")
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")
    assert [line["round"] for line in rounds_of(tmp_path / "cut")] == [1, 2, 3, 4, 5]


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = experiment("fedproto", "stacked")
    new_run(whole).play(RunFolder.create(tmp_path / "whole", whole), Progress())

    replace = os.replace

    def die(draft: Any, path: Any, **more: Any) -> None:
        if "checkpoint" in str(path):
            raise Killed
        replace(draft, path, **more)

    folder = RunFolder.create(tmp_path / "cut", whole)
    save = folder.checkpoint.save
    with monkeypatch.context() as patch:

        def save_once(*state: Any) -> None:
            save(*state)
            folder.checkpoint.wait()
            patch.setattr("os.replace", die)

        patch.setattr(folder.checkpoint, "save", save_once)
        with pytest.raises(Killed):
            new_run(whole).play(folder, Progress())
    (tmp_path / "cut/checkpoint/.state.safetensors.draft").write_bytes(b"what a killed process leaves")
    assert len(rounds_of(tmp_path / "cut")) == 2
    succeed(tmp_path, "resume", "cut", "--quiet")
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")


@pytest.mark.parametrize(("method", "kills"), [("fedproto", 1), pytest.param("mp-fedcl", 2, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_does_not_change_the_result(tmp_path: Path, method: str, kills: int) -> None:
    many = (*TINY, "--method", method, "--rounds", "30", "--quiet")
    for kill in range(kills):
        command = ("resume", "cut", "--quiet") if kill else ("run", *many, "--out", "cut")
        reached = _lines(tmp_path / "cut")
        process = start(tmp_path, *command, stdout=DEVNULL, stderr=DEVNULL)
        _kill_at(process, tmp_path / "cut", reached + 2)
    assert not (tmp_path / "cut/result.json").exists()
    succeed(tmp_path, "resume", "cut", "--quiet")
    succeed(tmp_path, "run", *many, "--out", "whole")
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")


def _lines(run: Path) -> int:
    rounds = run / "rounds.jsonl"
    return rounds.read_bytes().count(b"\n") if rounds.exists() else 0


def _wait(process: Popen[str], run: Path, lines: int) -> None:
    end = time.monotonic() + 60
    while _lines(run) < lines:
        assert process.poll() is None, "it ended before the moment came"
        assert time.monotonic() < end, "the moment did not come"
        time.sleep(0.001)


def _kill_at(process: Popen[str], run: Path, lines: int) -> None:
    with process:
        try:
            _wait(process, run, lines)
            time.sleep(MOMENTS.random() * 0.05)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL


OWN_METHOD = """
from dataclasses import dataclass
from protofed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Own(FedAvg):
    name = "own"
"""


def test_a_run_goes_on_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_METHOD)
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.arange(60) % 3)
    small = ("--dataset", "npz:own.npz", "--model", "cnn", "--device", "cpu", "--clients", "2", "--rounds", "3")
    (tmp_path / "elsewhere").mkdir()
    for command, more in (("run", ()), ("compare", ("--seeds", "1"))):
        succeed(tmp_path, command, "--method", "own.py:Own", *small, *more, "--out", command, "--quiet")
        (result,) = (tmp_path / command).rglob("result.json")
        result.unlink()
        succeed(tmp_path / "elsewhere", "resume", f"../{command}", "--quiet")
        assert result.exists()


def test_a_run_is_played_once_at_a_time(tmp_path: Path) -> None:
    process = start(tmp_path, "run", *TINY, "--rounds", "100000", "--out", "run")
    try:
        _wait(process, tmp_path / "run", 2)
        outcome = invoke(tmp_path, "resume", "run")
    finally:
        process.send_signal(signal.SIGINT)
        finish(process)
    assert (outcome.code, outcome.out) == (2, "")
    assert "another process is running it" in outcome.err


def test_the_number_of_runs_at_a_time_is_checked(tmp_path: Path) -> None:
    run = ("--out", "run", "--rounds", "1", "--quiet")
    succeed(tmp_path, "run", *TINY, *run)
    assert "a single run has no others beside it" in invoke(tmp_path, "resume", "run", "--jobs", "2").err
    succeed(tmp_path, "compare", *TINY, "--seeds", "1", "--rounds", "1", "--out", "some", "--quiet")
    outcome = invoke(tmp_path, "resume", "some", "--jobs", "0")
    assert (outcome.code, outcome.out) == (2, "")
    assert "invalid value '0' for --jobs: it must be 1 or more" in outcome.err


def test_ctrl_c_stops_after_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = start(tmp_path, "run", *TINY, "--rounds", "100000", "--checkpoint-every", "1000", "--out", "run")
    try:
        _wait(process, tmp_path / "run", 2)
    finally:
        process.send_signal(signal.SIGINT)
    outcome = finish(process)
    assert outcome.code == 130
    assert outcome.out == ""
    done = len(rounds_of(tmp_path / "run"))
    said = f"stopped after round {done} of 100000; continue with: protofed resume run"
    assert outcome.err.splitlines()[-1] == said
    with safe_open(tmp_path / "run/checkpoint/state.safetensors", framework="pt") as file:
        assert file.metadata()["rounds"] == str(done)
    assert not (tmp_path / "run/result.json").exists()


def _press_ctrl_c(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    def tell(self: Lines, standing: Standing) -> None:  # noqa: ARG001
        if standing.done == 1 and standing.loss is not None:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Lines, "tell", tell)


@pytest.mark.parametrize(("times", "said"), [(1, "stopped after round 2 of 3; "), (2, "stopped; ")])
def test_after_ctrl_c_the_run_goes_on_to_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, said: str
) -> None:
    succeed(tmp_path, "run", *TINY, "--out", "whole", "--quiet")
    with monkeypatch.context() as patch:
        _press_ctrl_c(patch, times)
        outcome = invoke(tmp_path, "run", *TINY, "--out", "cut")
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == f"{said}continue with: protofed resume cut"
    succeed(tmp_path, "resume", "cut", "--quiet")
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")


def test_ctrl_c_between_checkpoint_and_progress_is_saved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        _press_ctrl_c(patch, 1)
        invoke(tmp_path, "run", *TINY, "--checkpoint-every", "10", "--out", "cut")
    done = len(rounds_of(tmp_path / "cut"))
    with safe_open(tmp_path / "cut/checkpoint/state.safetensors", framework="pt") as file:
        assert file.metadata()["rounds"] == str(done)


def test_a_run_that_used_up_its_time_plays_no_further_round(tmp_path: Path) -> None:
    short = Experiment(model="cnn", device="cpu", train_size=150, clients=3, rounds=5, time_budget=1e-6)
    with pytest.raises(Killed):  # after the last checkpoint, before result.json
        new_run(short).play(RunFolder.create(tmp_path / "cut", short), KillAfter(1))
    succeed(tmp_path, "resume", "cut", "--quiet")
    result = result_of(tmp_path / "cut")
    assert (result["rounds"], result["stopped"]) == (1, "time budget")


def test_ctrl_c_is_left_as_it_was_found(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    succeed(tmp_path, "run", *TINY, "--rounds", "1", "--out", "run", "--quiet")
    assert signal.getsignal(signal.SIGINT) is before


def test_resuming_a_finished_run_shows_it_and_plays_nothing(tmp_path: Path) -> None:
    succeed(tmp_path, "run", *TINY, "--rounds", "1", "--out", "run", "--quiet")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    outcome = succeed(tmp_path, "resume", "run", "--json")
    assert json.loads(outcome.out) == parse_json((tmp_path / "run/result.json").read_text())
    assert outcome.err == "run is complete\n"
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run that was killed in round 4 of 5, its last checkpoint after round 2."""
    plan = experiment("fedproto", "stacked")
    with pytest.raises(Killed):
        new_run(plan).play(RunFolder.create(tmp_path / "run", plan), KillAfter(3))
    return tmp_path / "run"


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_corrupt_checkpoint_is_one_line(unfinished: Path, content: bytes) -> None:
    (unfinished / "checkpoint/state.safetensors").write_bytes(content)
    _refused(unfinished, "its checkpoint cannot be read")


def test_a_truncated_checkpoint_is_one_line(unfinished: Path) -> None:
    state = unfinished / "checkpoint/state.safetensors"
    state.write_bytes(state.read_bytes()[:-100])
    _refused(unfinished, "its checkpoint cannot be read")


def test_rounds_that_do_not_reach_the_checkpoint_are_one_line(unfinished: Path) -> None:
    (unfinished / "rounds.jsonl").write_text("")
    _refused(unfinished, "rounds.jsonl has 0 rounds, its checkpoint 2")


def test_corrupt_rounds_are_one_line(unfinished: Path) -> None:
    (unfinished / "rounds.jsonl").write_text("{\n" * 3)
    _refused(unfinished, "rounds.jsonl cannot be read")


def _refused(run: Path, reason: str) -> None:
    outcome = invoke(run.parent, "resume", run.name)
    said = refused(outcome)
    assert said.startswith("error: invalid value 'run' for DIR: ")
    assert reason in said


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    _refused(tmp_path / "run", "it is not a run folder")
    (tmp_path / "run").rmdir()
    _refused(tmp_path / "run", "it is not a run folder")
