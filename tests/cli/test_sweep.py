"""`protofed sweep` and `protofed choose-k`: tables, files, run folders, and going on after an interruption."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from PIL import Image

from protofed.cli.common import GETTING_READY
from protofed.runs.progress import Lines, Progress, Standing
from protofed.runs.result import FURTHER
from protofed.studies import study, workers
from protofed.studies.workers import Task
from tests.support.command_line import Outcome, everything_in, invoke, refused, result_of, succeed

RUN = (
    *("--model", "cnn", "--device", "cpu", "--threads", "1"),
    *("--train-size", "150", "--clients", "3", "--rounds", "2"),
)
SMALL = (*RUN, "--jobs", "1")
GRID = ("--grid", "batch-size=16,32", "--grid", "k=1,3")
SETTINGS = [{"batch_size": size, "k": k} for size in (16, 32) for k in (1, 3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished sweep, and what was printed."""
    place = tmp_path_factory.mktemp("sweep")
    outcome = succeed(place, "sweep", *GRID, "--method", "mp-fedcl,local", "--seeds", "2", "--alpha", "1", *SMALL)
    return place / "runs/sweep-batch_size-k-digits", outcome


def _values(folder: Path, setting: str, method: str, name: str) -> list[float]:
    results = [json.loads((folder / setting / f"{method}-seed{seed}/result.json").read_text()) for seed in (0, 1)]
    return [result["accuracy"][name]["last"] for result in results]


def _results(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): result_of(path.parent) for path in folder.rglob("result.json")}


def test_every_setting_method_and_seed_has_a_run_folder(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    runs = {f"batch_size={size},k={k}/mp-fedcl-seed{seed}" for size in (16, 32) for k in (1, 3) for seed in (0, 1)}
    runs |= {f"batch_size={size}/local-seed{seed}" for size in (16, 32) for seed in (0, 1)}
    assert {str(path.parent.relative_to(folder)) for path in folder.rglob("result.json")} == runs
    files = {"sweep.yaml", "sweep.json", "sweep.csv", "tests.csv", "sweep.png"}
    assert {path.name for path in folder.iterdir() if path.is_file()} == files


def test_means_and_deviations_follow_from_the_run_folders(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    cells = json.loads((folder / "sweep.json").read_text())["cells"]
    assert [cell["setting"] for cell in cells if cell["method"] == "mp-fedcl"] == SETTINGS
    assert [cell["setting"] for cell in cells if cell["method"] == "local"] == [{"batch_size": 16}, {"batch_size": 32}]
    for cell in cells:
        name = ",".join(f"{key}={value}" for key, value in cell["setting"].items())
        for accuracy, spread in cell["accuracy"].items():
            values = _values(folder, name, cell["method"], accuracy)
            assert spread["values"] == values
            assert (spread["mean"], spread["std"]) == pytest.approx((fmean(values), stdev(values)))


def test_the_csv_says_what_the_json_says(made: tuple[Path, Outcome]) -> None:
    folder, _ = made
    with (folder / "sweep.csv").open(newline="") as file:
        lines = [
            ((line["batch_size"], line["k"], line["method"], line["quantity"]), float(line["mean"]), float(line["std"]))
            for line in csv.DictReader(file)
        ]
    assert lines == [
        (
            (str(cell["setting"]["batch_size"]), str(cell["setting"].get("k", "")), cell["method"], name),
            *(spread["mean"], spread["std"]),
        )
        for cell in json.loads((folder / "sweep.json").read_text())["cells"]
        for name, spread in [*cell["accuracy"].items(), *((name, cell[name]) for name in FURTHER if cell[name])]
    ]


def test_the_table_has_a_row_a_setting_and_method(made: tuple[Path, Outcome]) -> None:
    folder, outcome = made
    lines = [line.split() for line in outcome.out.splitlines()]
    (titles,) = [line for line in lines if "method" in line]
    assert titles[:5] == ["batch_size", "k", "method", "own/own/head", "own/all/nearest"]  # first what all have
    values = _values(folder, "batch_size=16,k=3", "mp-fedcl", "own/all/nearest")
    (row,) = [line for line in lines if line[:3] == ["16", "3", "mp-fedcl"]]
    assert row[4] == f"{fmean(values):.1f}±{stdev(values):.1f}"
    assert sum(line[:3] == ["32", "–", "local"] for line in lines) == 1
    assert outcome.out.endswith("runs: runs/sweep-batch_size-k-digits\n")


def test_the_plot_is_a_picture(made: tuple[Path, Outcome]) -> None:
    with Image.open(made[0] / "sweep.png") as picture:
        colours = picture.convert("RGB").getcolors(2**24) or []
    seen = {colour for _, colour in colours}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x1C, 0xCD, 0x8E)} <= seen  # two settings and a method without k


def test_progress_tells_runs_of_one_method_and_seed_apart(made: tuple[Path, Outcome]) -> None:
    ready, *lines = made[1].err.splitlines()
    assert ready == GETTING_READY
    assert len(lines) == 2 * 12
    assert lines[0].startswith("[1/12] mp-fedcl seed 0, batch_size=16 k=1: 2 rounds, ")
    assert lines[-1].startswith("[12/12] mp-fedcl seed 1, batch_size=32 k=3: own/all/nearest ")


def test_a_run_of_a_sweep_is_the_run_that_run_makes(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    options = ("--method", "mp-fedcl", "--set", "k=3", "--seed", "1", "--batch-size", "16", "--alpha", "1")
    succeed(tmp_path, "run", *RUN, *options, "--out", "run", "--quiet")
    assert result_of(tmp_path / "run") == result_of(made[0] / "batch_size=16,k=3/mp-fedcl-seed1")


def test_resume_plays_only_what_is_missing(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made[0], folder)
    before = _results(folder)
    (folder / "batch_size=16/local-seed1/result.json").unlink()
    shutil.rmtree(folder / "batch_size=32,k=1")
    (folder / "sweep.png").unlink()
    outcome = succeed(tmp_path, "resume", "copy")
    assert _results(folder) == before
    played = [line.split("] ")[1].split(":")[0] for line in outcome.err.splitlines() if "engine" in line]
    assert played == [
        "local seed 1, batch_size=16",
        *(f"mp-fedcl seed {seed}, batch_size=32 k=1" for seed in (0, 1)),
    ]
    assert (folder / "sweep.csv").read_text() == (made[0] / "sweep.csv").read_text()
    assert (folder / "sweep.png").exists()
    again = succeed(tmp_path, "resume", "copy", "--json", "--quiet")
    assert again.out == (folder / "sweep.json").read_text()


def test_resume_may_play_another_number_of_runs_at_a_time(
    made: tuple[Path, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []

    def play_all(tasks: Sequence[Task], progress: Progress, number: int | None) -> list[workers.Ending]:
        jobs.append(number)
        return workers.play_all(tasks, progress, 1)

    monkeypatch.setattr(study, "play_all", play_all)
    for more in ((), ("--jobs", "3")):
        succeed(made[0].parent, "resume", made[0].name, "--quiet", *more)
    assert jobs == [1, 3]


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(made: tuple[Path, Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(self: Lines, standing: Standing) -> None:  # noqa: ARG001
        if (standing.setting, standing.seed, standing.done) == ("batch_size=16 k=3", 1, 1):
            signal.raise_signal(signal.SIGINT)

    arguments = ("sweep", *GRID, "--method", "mp-fedcl,local", "--seeds", "2", "--alpha", "1", *SMALL, "--out", "cut")
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "tell", tell)
        outcome = invoke(tmp_path, *arguments)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1].endswith("; continue with: protofed resume cut")
    assert not (tmp_path / "cut/sweep.json").exists()
    succeed(tmp_path, "resume", "cut", "--quiet")
    assert _results(tmp_path / "cut") == _results(made[0])


def test_the_score_is_shown_alone_and_the_config_runs_again(made: tuple[Path, Outcome], tmp_path: Path) -> None:
    config = str(made[0] / "sweep.yaml")
    again = ("--grid", "k=1", "--method", "mp-fedcl", "--seeds", "1", "--score", "own/own/head", "--out", "new")
    outcome = succeed(tmp_path, "sweep", "--config", config, *again, "--quiet")
    (titles,) = [line.split() for line in outcome.out.splitlines() if "method" in line]
    assert titles == ["k", "method", "own/own/head"]
    assert [path.name for path in (tmp_path / "new").rglob("*-seed0")] == ["mp-fedcl-seed0"]
    assert "score: own/own/head" in (tmp_path / "new/sweep.yaml").read_text()


def test_values_are_read_as_a_config_file_reads_them(tmp_path: Path) -> None:
    options = ("--method", "local", "--seeds", "1", "--grid", "balance=true,false", "--grid", "long-tail=null,2")
    succeed(tmp_path, "sweep", *options, *SMALL, "--out", "new", "--quiet")
    cells = json.loads((tmp_path / "new/sweep.json").read_text())["cells"]
    assert [(cell["setting"]["balance"], cell["setting"]["long_tail"]) for cell in cells] == [
        *((True, None), (True, 2), (False, None), (False, 2)),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep"], ["missing value for --grid", "--grid alpha=0.1,0.5,1"]),
        (["sweep", "--grid", "k"], ["'k' for --grid", "NAME=VALUE,VALUE"]),
        (["sweep", "--grid", "=1"], ["'=1' for --grid", "NAME=VALUE,VALUE"]),
        (["sweep", "--grid", "k=1", "--grid", "k=2"], ["'k=2' for --grid", "twice"]),
        (["sweep", "--grid", "k=1,[2"], ["'k=1,[2' for --grid", "cannot be read"]),
        (["sweep", "--grid", "k=1,two"], ["'two' for --set k", "int"]),
        (["sweep", "--grid", "kk=1"], ["'kk' for --grid", "did you mean 'k'?"]),
        (["sweep", "--grid", "k=1,2", "--method", "fedprotto"], ["--method", "did you mean 'fedproto'?"]),
        (["sweep", "--grid", "k=1", "--seeds", "0"], ["'0' for --seeds"]),
        (["sweep", "--grid", "k=1", "--jobs", "0"], ["'0' for --jobs"]),
        (["sweep", "--grid", "k=1", "--score", "accuracy"], ["'accuracy' for --score"]),
        (["sweep", "--grid", "k=1", "--score", "own/own/haed"], ["'own/own/haed' for --score", "nearest-own"]),
        (["sweep", "--grid", "clients=3,500"], ["'500' for --clients"]),  # found out when data is divided
        (["sweep", "--config", "grid.yaml"], ["'3' for --grid k", "list"]),
        (["sweep", "--grid", "k=1", "--out", "grid.yaml"], ["'grid.yaml' for --out", "exists"]),
        (
            ["choose-k", "--method", "fedcda"],
            ["'fedcda' for --method", "mp-fedcl"],
        ),  # its k is of models, not prototypes
        (["choose-k", "--max-k", "1"], ["'1' for --max-k", "2 or more"]),
        (["choose-k", "--max-k", "some"], ["'some' for --max-k", "int"]),
        (["choose-k", "--val-fraction", "0"], ["'0.0' for --val-fraction", "held out"]),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    (tmp_path / "grid.yaml").write_text("grid: {k: 3}\n")
    before = everything_in(tmp_path)
    outcome = invoke(tmp_path, *arguments[:1], *SMALL, *arguments[1:])
    said = refused(outcome)
    assert all(word in said for word in words), said
    assert everything_in(tmp_path) == before


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """A finished choice of K, and what was printed."""
    place = tmp_path_factory.mktemp("choose-k")
    options = ("--max-k", "3", "--seeds", "2", *SMALL, "--train-size", "300", "--quiet")
    return place / "runs/choose-k-digits", succeed(place, "choose-k", *options)


def test_k_is_chosen_by_the_validation_accuracy_of_the_runs(chosen: tuple[Path, Outcome]) -> None:
    folder, outcome = chosen
    accuracy = {k: _values(folder, f"k={k}", "mp-fedcl", "own/val/nearest") for k in (1, 2, 3)}
    choice = json.loads((folder / "choose-k.json").read_text())
    assert {found["k"]: found["accuracy"]["values"] for found in choice["candidates"]} == accuracy
    best = max(accuracy, key=lambda k: fmean(accuracy[k]))
    assert choice["k"] == best
    lines = [line.split() for line in outcome.out.splitlines()]
    (row,) = [line for line in lines if line[:1] == [str(best)]]
    assert row[1] == f"{fmean(accuracy[best]):.2f}±{stdev(accuracy[best]):.2f}"
    assert f"note: validation accuracy: K = {best}, " in outcome.out
    assert "note: silhouette: " in outcome.out
    assert [found["silhouette"] is None for found in choice["candidates"]] == [True, False, False]


def test_a_fifth_of_the_data_is_held_out(chosen: tuple[Path, Outcome]) -> None:
    assert "val_fraction: 0.2\n" in (chosen[0] / "k=2/mp-fedcl-seed1/config.yaml").read_text()


def test_choosing_goes_on_to_the_same_choice(chosen: tuple[Path, Outcome], tmp_path: Path) -> None:
    shutil.copytree(chosen[0], tmp_path / "copy")
    (tmp_path / "copy/choose-k.json").unlink()
    shutil.rmtree(tmp_path / "copy/k=1/mp-fedcl-seed1")
    outcome = succeed(tmp_path, "resume", "copy", "--json", "--quiet")
    assert outcome.out == (tmp_path / "copy/choose-k.json").read_text() == (chosen[0] / "choose-k.json").read_text()
