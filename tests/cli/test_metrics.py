"""Metrics as a user asks for them: in tables, files and reports of runs, comparisons and sweeps."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from protofed.report.html import gather, looks
from tests.support.command_line import TINY, invoke, refused, result_of, succeed

METRICS = ("--metrics", "f1,ece,class=3,worst")
QUIET = ("--jobs", "1", "--threads", "1", "--quiet")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two methods and two seeds with metrics, and what was shown."""
    place = tmp_path_factory.mktemp("metrics")
    shown = succeed(place, "compare", *TINY[2:], *METRICS, "--method", "fedproto,fedavg", "--seeds", "2", *QUIET)
    (folder,) = (place / "runs").iterdir()
    return folder, shown.out


def test_a_comparison_has_a_column_a_metric(compared: tuple[Path, str]) -> None:
    folder, shown = compared
    rows = {row["method"]: row["accuracy"] for row in json.loads((folder / "compare.json").read_text())["rows"]}
    for metric in ("f1", "ece", "class=3", "worst"):
        for method, found in rows.items():
            spread = found[f"own/own/head:{metric}"]
            runs = [result_of(folder / f"{method}-seed{seed}")["accuracy"] for seed in (0, 1)]
            values = [run[f"own/own/head:{metric}"]["last"] for run in runs if f"own/own/head:{metric}" in run]
            assert spread["values"] == values
            assert f"{spread['mean']:.1f}±{spread['std']:.1f}" in shown
        assert f"own/own/head:{metric}" in shown
    assert "of ece the lower is the better" in shown
    with (folder / "compare.csv").open() as file:
        table = {(row["method"], row["quantity"]): float(row["mean"]) for row in csv.DictReader(file)}
    assert table["fedavg", "global/all/head:ece"] == rows["fedavg"]["global/all/head:ece"]["mean"]
    assert not any(name.startswith("own/own/nearest") and name.endswith(":ece") for name in rows["fedproto"])


def test_the_best_calibration_error_is_the_lowest(compared: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = compared
    monkeypatch.setattr(looks, "plane", lambda seen: [[1.0, 2.0]] * (len(seen.features) + len(seen.prototypes)))
    data: dict[str, Any] = gather([folder])
    for score, best in (("own/own/head:ece", min), ("own/own/head:f1", max)):
        means = {row["label"]: row["cells"][score]["mean"] for row in data["summary"]}
        assert len({*means.values()}) == 2
        (marked,) = (row["label"] for row in data["summary"] if row["cells"][score]["best"])
        assert marked == best(means, key=means.__getitem__)
        tests = json.loads((folder / "compare.json").read_text())["tests"]
        assert {test["best"] for test in tests if test["score"] == score} == {marked}
    (says,) = (row["cells"]["own/own/head:ece"]["says"] for row in data["summary"] if row["label"] != marked_of(data))
    assert "above the best" in says
    assert "-" not in says.partition("(")[2].partition(" points")[0]
    assert {name.partition(":")[2] for name in data["lower"]} == {"ece"}
    error = result_of(folder / "fedavg-seed0")["accuracy"]["own/own/head:ece"]["last"]
    assert data["lines"]["fedavg"][0]["curves"]["own/own/head:ece"][-1] == pytest.approx(error, rel=1e-3)


def marked_of(data: dict[str, Any]) -> str:
    (found,) = (row["label"] for row in data["summary"] if row["cells"]["own/own/head:ece"]["best"])
    return str(found)


def test_a_sweep_asks_for_the_metric_of_its_score(tmp_path: Path) -> None:
    grid = ("--grid", "lr=0.001,0.1", "--seeds", "1", "--score", "global/all/head:worst10")
    shown = succeed(tmp_path, "sweep", *TINY[2:], "--method", "fedavg", *grid, "--out", "s", *QUIET).out
    for cell in json.loads((tmp_path / "s/sweep.json").read_text())["cells"]:
        assert f"{cell['accuracy']['global/all/head:worst10']['mean']:.1f}" in shown
    assert "metrics: worst10" in (tmp_path / "s/sweep.yaml").read_text()


def test_tuning_takes_the_lowest_error(tmp_path: Path) -> None:
    tune = ("--tune", "lr=0.0001,0.01,0.3", "--val-metric", "ece", "--seeds", "1")
    succeed(tmp_path, "compare", *TINY[2:], "--method", "fedavg", *tune, "--out", "c", *QUIET)
    with (tmp_path / "c/tuning.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["score"] for row in rows} == {"global/val/head:ece"}
    means = {row["setting"]: float(row["mean"]) for row in rows}
    assert len({*means.values()}) == 3
    assert [row["setting"] for row in rows if row["chosen"] == "yes"] == [min(means, key=means.__getitem__)]


def test_a_run_says_how_many_clients_a_metric_is_of(tmp_path: Path) -> None:
    skewed = ("--split", "ways", "--ways", "2", "--half-width", "0", "--shots", "20", "--clients", "3")
    succeed(tmp_path, "run", "--method", "local", "--metrics", "auc,class", "--rounds", "1", *skewed, "--out", "r")
    found = result_of(tmp_path / "r")["accuracy"]
    assert fmean(found["own/all/head:auc"]["per_client"]) == pytest.approx(found["own/all/head:auc"]["last"])
    recalls = {name: one for name, one in found.items() if name.startswith("own/own/head:class=")}
    assert 2 <= len(recalls) <= 6
    assert any("undefined" in one for one in recalls.values())
    for one in recalls.values():
        assert len(one["per_client"]) + len(one.get("undefined", [])) == 3
        assert one["last"] == pytest.approx(fmean(one["per_client"]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "--metrics", "f1,acu"), "'acu' for --metrics"),
        (("run", "--metrics", "class=11"), "'class=11' for --metrics"),
        (("run", "--metrics", ""), "'' for --metrics"),
        (("run", "--val-metric", "balancd"), "'balancd' for --val-metric"),
        (("sweep", "--grid", "lr=0.1,0.2", "--score", "own/own/head:aux"), "'aux' for --score"),
        (("sweep", "--grid", "lr=0.1,0.2", "--score", "own/own/head:class"), "'class' for --score"),
        (("sweep", "--grid", "lr=0.1,0.2", "--score", "own/own:f1"), "'own/own:f1' for --score"),
        (("compare", "--metrics", "top5", "--method", "local,fedavg"), "'top5' for --metrics"),
    ],
)
def test_an_unknown_metric_is_one_line(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    assert says in refused(invoke(tmp_path, *arguments))
    assert not list(tmp_path.iterdir())
