"""`protofed compare`: one table, two files, the run folders, and going on after an interruption."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from protofed.cli.common import GETTING_READY
from protofed.runs.progress import Lines, Standing
from protofed.runs.result import FURTHER
from tests.support.command_line import Outcome, everything_in, invoke, refused, result_of, succeed

SMALL = (
    *("--model", "cnn", "--device", "cpu", "--threads", "1"),
    *("--train-size", "150", "--clients", "3", "--rounds", "2"),
)
METHODS = ("local", "fedavg", "mp-fedcl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished comparison, and what was printed."""
    place = tmp_path_factory.mktemp("compare")
    settings = ("--seeds", "3", "--seed", "4", "--set", "k=3")
    outcome = succeed(place, "compare", "--method", "local,fedavg", "--method", "mp-fedcl", *SMALL, *settings)
    return place / "runs/compare-digits", outcome


def _results(folder: Path, method: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{method}-seed{seed}/result.json").read_text()) for seed in (4, 5, 6)]


def test_every_method_and_seed_has_a_run_folder(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    runs = {f"{method}-seed{seed}" for method in METHODS for seed in (4, 5, 6)}
    assert {path.name for path in folder.iterdir()} == runs | {
        *("compare.yaml", "compare.json", "compare.csv", "tests.csv", "report.html")
    }
    for name in runs:
        assert {path.name for path in (folder / name).iterdir()} == {
            *("config.yaml", "rounds.jsonl", "result.json", "snapshot.safetensors"),
            *("motion.safetensors", "checkpoint"),
        }


def test_means_and_deviations_follow_from_the_run_folders(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    rows = json.loads((folder / "compare.json").read_text())["rows"]
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        results = _results(folder, row["method"])
        expected = {name: [run["accuracy"][name]["last"] for run in results] for name in results[0]["accuracy"]}
        assert set(row["accuracy"]) == set(expected)
        for name, values in expected.items():
            _check(row["accuracy"][name], values)
        _check(row["bytes_up_per_round"], [run["bytes_up"] / 2 for run in results])
        _check(row["bytes_down_per_round"], [run["bytes_down"] / 2 for run in results])
        _check(row["seconds"], [run["seconds"] for run in results])


def _check(spread: dict[str, Any], values: list[float]) -> None:
    assert spread["values"] == values
    assert spread["mean"] == pytest.approx(fmean(values))
    assert spread["std"] == pytest.approx(stdev(values))


def test_the_csv_says_what_the_json_says(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    with (folder / "compare.csv").open(newline="") as file:
        lines = {(line["method"], line["quantity"]): line for line in csv.DictReader(file)}
    rows = json.loads((folder / "compare.json").read_text())["rows"]
    quantities = {
        (row["method"], name): spread
        for row in rows
        for name, spread in [
            *row["accuracy"].items(),
            *((name, row[name]) for name in ("bytes_up_per_round", "bytes_down_per_round", "seconds")),
            *((name, row[name]) for name in FURTHER if row[name]),
        ]
    }
    assert [row["method"] for row in rows if row["prototypes_per_class"]] == ["mp-fedcl"]
    assert set(lines) == set(quantities)
    for key, spread in quantities.items():
        assert (float(lines[key]["mean"]), float(lines[key]["std"])) == (spread["mean"], spread["std"])
        assert lines[key]["seeds"] == "3"


def test_the_table_shows_mean_and_deviation_and_where_the_runs_are(made: tuple[Path, Outcome]) -> None:
    folder, outcome = made
    lines = {line.split()[0]: line for line in outcome.out.splitlines() if line.strip()}
    for method, mark in [("mp-fedcl", ""), ("local", "*")]:  # local has no prototypes: a diagnostic
        values = [run["accuracy"]["own/all/nearest"]["last"] for run in _results(folder, method)]
        place = lines["method"].split().index("own/all/nearest")
        assert lines[method].split()[place] == f"{fmean(values):.1f}±{stdev(values):.1f}{mark}"
    assert "digits, dirichlet, 3 clients, cnn; 3 seeds" in outcome.out
    assert outcome.out.endswith("runs: runs/compare-digits\nreport: runs/compare-digits/report.html\n")


def test_progress_is_two_lines_a_run(made: tuple[Path, Outcome]) -> None:
    _, outcome = made
    ready, *lines = outcome.err.splitlines()
    assert ready == GETTING_READY
    assert len(lines) == 18
    assert lines[0].startswith("[1/9] local seed 4: 2 rounds, ")
    assert any(line.startswith("[1/9] local seed 4: own/own/head ") for line in lines)
    assert any(line.startswith("[9/9] mp-fedcl seed 6: own/all/nearest ") for line in lines)  # not always the last


def test_a_parameter_goes_to_the_methods_that_have_it(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    assert _results(folder, "mp-fedcl")[0]["params"]["k"] == 3
    assert "k" not in _results(folder, "fedavg")[0]["params"]


def test_it_says_that_methods_differ_in_bytes_but_not_in_rounds(made: tuple[Path, Outcome]) -> None:
    _, outcome = made
    (note,) = [line for line in outcome.out.splitlines() if line.startswith("note: ")]
    assert "methods differ in bytes per round: from local (0) to mp-fedcl (" in note


def test_a_run_of_a_comparison_is_the_run_that_run_makes(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, _ = made
    options = ("--method", "mp-fedcl", "--set", "k=3", "--seed", "5")
    succeed(tmp_path, "run", *SMALL, *options, "--out", "run", "--quiet")
    assert result_of(tmp_path / "run") == result_of(folder / "mp-fedcl-seed5")


def test_json_is_that_of_the_file(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    outcome = succeed(folder.parents[1], "resume", "runs/compare-digits", "--json", "--quiet")
    assert outcome.out == (folder / "compare.json").read_text()
    assert outcome.err == ""


def test_resume_plays_only_what_is_missing(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made[0], folder)
    before = {path.name: result_of(path) for path in folder.iterdir() if path.is_dir()}
    (folder / "fedavg-seed5/result.json").unlink()
    shutil.rmtree(folder / "mp-fedcl-seed6")
    untouched = (folder / "local-seed4/result.json").stat().st_mtime_ns
    outcome = succeed(tmp_path, "resume", "copy")
    assert {path.name: result_of(path) for path in folder.iterdir() if path.is_dir()} == before
    assert (folder / "local-seed4/result.json").stat().st_mtime_ns == untouched
    played = [line for line in outcome.err.splitlines() if "engine" in line]
    assert [line.split(":")[0] for line in played] == ["[5/9] fedavg seed 5", "[9/9] mp-fedcl seed 6"]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(self: Lines, standing: Standing) -> None:  # noqa: ARG001
        if (standing.seed, standing.done) == (1, 1):
            signal.raise_signal(signal.SIGINT)

    options = ("--method", "local", "--seeds", "2", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "tell", tell)
        outcome = invoke(tmp_path, "compare", *options, "--out", "cut")
    assert outcome.code == 130
    assert outcome.err.endswith("stopped after round 2 of 2; continue with: protofed resume cut\n")
    assert not (tmp_path / "cut/compare.json").exists()
    succeed(tmp_path, "resume", "cut", "--quiet")
    succeed(tmp_path, "compare", *options, "--out", "whole", "--quiet")
    for name in ("local-seed0", "local-seed1"):
        assert result_of(tmp_path / "cut" / name) == result_of(tmp_path / "whole" / name)


def test_a_config_file_may_hold_everything_or_a_part(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text("model: cnn\ntrain_size: 150\nclients: 3\nrounds: 1\nthreads: 1\n")
    succeed(tmp_path, "compare", "--config", "part.yaml", "--method", "local", "--seeds", "1", "--out", "a", "--quiet")
    succeed(tmp_path, "compare", "--config", "a/compare.yaml", "--out", "b", "--quiet")
    assert result_of(tmp_path / "b/local-seed0") == result_of(tmp_path / "a/local-seed0")
    assert not (tmp_path / "b/local-seed1").exists()


def test_it_says_when_the_time_budget_cut_rounds_short(tmp_path: Path) -> None:
    options = ("--method", "local", "--seeds", "1", *SMALL, "--time-budget", "1e-6")
    outcome = succeed(tmp_path, "compare", *options, "--out", "a", "--quiet")
    assert "note: the time budget cut rounds short: local seed 0 (1)" in outcome.out


SUBCLASS = '''
from dataclasses import dataclass

from protofed.methods.fedproto import FedProto


@dataclass(frozen=True)
class Mine(FedProto):
    """Forgets to give itself a name."""
'''


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--method", "local,local"], ["--method", "'local,local'", "more than one is called local"]),
        (["--method", "fedproto,mine.py:Mine"], ["--method", "mine.py:Mine", "more than one is called fedproto"]),
        ([], ["--method", "missing value for", "name at least one"]),
        (["--method", "local,fedprotto"], ["--method", "'fedprotto'", "did you mean 'fedproto'?"]),
        (["--method", "local,fedavg", "--set", "k=3"], ["--set", "'k'", "it must be one of averaging, norm"]),
        (["--method", "local,mp-fedcl", "--set", "k=0"], ["'0' for --set k", "1 or more"]),
        (["--method", "local", "--seeds", "0"], ["'0' for --seeds", "from 1 to 1000"]),
        (["--method", "local", "--seeds", "100000000"], ["'100000000' for --seeds", "from 1 to 1000"]),
        (["--method", "local", "--seeds", "two"], ["'two' for --seeds", "int"]),
        (["--method", "local,fedavg", "--model", "cnn,cnn-18"], ["--model", "'cnn,cnn-18'", "one architecture"]),
        (["--method", "local", "--jobs", "0"], ["'0' for --jobs", "1 or more"]),
        (["--method", "local", "--jobs", "all"], ["'all' for --jobs", "int"]),
        (["--config", "seeds.yaml"], ["'many' for seeds", "int"]),
        (["--config", "jobs.yaml"], ["'1.5' for jobs", "int"]),
        (["--config", "methods.yaml"], ["'local' for methods", "list"]),
        (["--config", "key.yaml"], ["'methodss'", "did you mean 'method'?"]),
        (["--method", "local", "--out", "mine.py"], ["'mine.py' for --out", "exists"]),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    (tmp_path / "mine.py").write_text(SUBCLASS)
    (tmp_path / "seeds.yaml").write_text("methods: [local]\nseeds: many\n")
    (tmp_path / "jobs.yaml").write_text("methods: [local]\njobs: 1.5\n")
    (tmp_path / "methods.yaml").write_text("methods: local\n")
    (tmp_path / "key.yaml").write_text("methodss: [local]\n")
    before = everything_in(tmp_path)
    outcome = invoke(tmp_path, "compare", *SMALL, *arguments)
    said = refused(outcome)
    assert all(word in said for word in words), said
    assert {path for path in everything_in(tmp_path) if "__pycache__" not in path.parts} == before
