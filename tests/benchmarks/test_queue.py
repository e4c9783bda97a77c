"""The queue of runs: what has ended is not played again, whenever it was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import queue
from protofed.methods import build_method

PLANS = Path(queue.__file__).parent / "plans"
PLAN = """
settings:
  tiny: {dataset: digits, model: linear, train_size: 60, clients: 2, rounds: 1, min_size: 2}
runs:
  - {setting: tiny, method: local, seeds: [0, 1], vary: {lr: [0.01, 0.1]}}
  - {setting: tiny, method: fedproto, seeds: [0], vary: {params.lam: [0.0, 1.0]}, options: {lr: 0.05}}
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A file with six runs."""
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def test_a_plan_is_every_combination_one_seed_after_the_other(plan: Path) -> None:
    runs = [options for _, options in queue.planned(plan)]
    assert [(run["method"], run["seed"], run["lr"]) for run in runs] == [
        ("local", 0, 0.01),
        ("local", 0, 0.1),
        ("local", 1, 0.01),
        ("local", 1, 0.1),
        ("fedproto", 0, 0.05),
        ("fedproto", 0, 0.05),
    ]
    assert [run["params"] for run in runs[-2:]] == [{"lam": 0.0}, {"lam": 1.0}]


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_plans_that_come_along_can_be_played(path: Path) -> None:
    runs = queue.planned(path)
    assert len({queue.key_of(options) for _, options in runs}) == len(runs)  # none is there twice
    for method, params in {(run["method"], json.dumps(run["params"])) for _, run in runs}:
        build_method(method, json.loads(params))


def test_what_has_ended_is_not_played_again(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, called = tmp_path / "found" / "ended.jsonl", [str(plan), "--out", str(tmp_path / "found" / "ended.jsonl")]
    played: list[str] = []

    def here(wanted: list[tuple[str, dict[str, object]]], *_: object) -> object:
        for setting, options in wanted:
            played.append(queue.key_of(options))
            yield queue.play(setting, options, {"device": "cpu"})

    monkeypatch.setattr(queue, "_played", here)
    assert queue.main(called) == 0
    assert len(played) == 6
    whole = out.read_text()
    assert all(0 <= json.loads(line)["accuracy"]["own/own/head"] <= 100 for line in whole.splitlines())

    out.write_text(whole[: whole.rindex("\n", 0, -1) + 20])  # cut off in the middle of the last line
    assert queue.main([*called, "--list"]) == 0
    assert "1 of 6 runs are wanted" in capsys.readouterr().out
    assert queue.main(called) == 0
    assert played[6:] == played[5:6]
    assert [json.loads(line)["accuracy"] for line in out.read_text().splitlines()] == [
        json.loads(line)["accuracy"] for line in whole.splitlines()
    ]


def test_a_run_that_fails_is_a_line_that_says_why() -> None:
    options = {"dataset": "digits", "model": "linear", "train_size": 60, "clients": 70, "rounds": 1, "method": "local"}
    found = queue.play("tiny", options, {"device": "cpu"})
    assert "clients" in found["failed"]


def test_a_run_without_memory_on_the_gpu_is_still_wanted(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("protofed.runs.run.new_run", full)
    setting, options = queue.planned(plan)[0]
    line = queue.play(setting, options, {"device": "cpu"})
    assert line["unplayed"] == "CUDA out of memory"

    out = tmp_path / "ended.jsonl"
    monkeypatch.setattr(queue, "_played", lambda *_: iter([line]))
    assert queue.main([str(plan), "--out", str(out)]) == 1
    assert queue.key_of(options) not in queue.ended(out)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "cannot be read"),
        ("settings: {}", "settings and runs"),
        ("settings: {}\nruns: [{setting: a, method: local, seeds: [0]}]", "setting"),
        ("settings: {a: {lr: 0}}\nruns: [{setting: a, method: local, seeds: [0]}]", "--lr"),
        ("settings: {a: {}}\nruns: [{setting: a, method: local}]", "seeds"),
    ],
)
def test_a_wrong_plan_is_one_line(text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert queue.main([str(path), "--out", str(tmp_path / "out.jsonl")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "path", sorted((Path(queue.__file__).parent / "plans").glob("*.yaml")), ids=lambda one: one.stem
)
def test_every_plan_of_ours_can_be_played(path: Path) -> None:
    keys = [queue.key_of(options) for _, options in queue.planned(path)]
    assert len(keys) == len(set(keys)) > 0
