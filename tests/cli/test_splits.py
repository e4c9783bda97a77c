"""Splits as a user runs them: rows written and read again, unseen domains, own test sets, resume and both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import invoke, refused, result_of, succeed

SMALL = ("--train-size", "200", "--model", "linear", "--method", "fedavg", "--precision", "float64", "--device", "cpu")
DOMAINS = (*SMALL, "--dataset", "digit-domains", "--split", "domains", "--unseen", "printed", "--metrics", "f1")


def accuracies(folder: Path) -> dict[str, Any]:
    return {name: value["per_client"] for name, value in result_of(folder)["accuracy"].items()}


def test_rows_are_written_and_read_again(tmp_path: Path) -> None:
    divided = ("--split", "dirichlet", "--alpha", "0.5", "--clients", "3", "--min-size", "5", "--seed", "2")
    succeed(tmp_path, "split", "--train-size", "200", *divided, "--out", "rows.json")
    said = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(row for rows in said["train"] for row in rows) == list(range(200))
    succeed(tmp_path, "run", *SMALL, *divided, "--rounds", "2", "--out", "one")
    read = ("--split", "indices:rows.json", "--seed", "2")
    succeed(tmp_path, "run", *SMALL, *read, "--rounds", "2", "--out", "two")
    assert accuracies(tmp_path / "one") == accuracies(tmp_path / "two")
    config = yaml.safe_load((tmp_path / "two" / "config.yaml").read_text())
    assert config["split"] == f"indices:{(tmp_path / 'rows.json').resolve()}"
    assert config["clients"] == 3
    assert "exists already" in refused(invoke(tmp_path, "split", *read, "--out", "rows.json"))


def test_rows_are_those_of_one_dataset(tmp_path: Path) -> None:
    said = refused(invoke(tmp_path, "split", "--dataset", "digits+digit-domains", "--out", "rows.json"))
    assert "of one dataset" in said
    assert not (tmp_path / "rows.json").exists()


def test_the_unseen_domain_in_both_engines(tmp_path: Path) -> None:
    for engine in ("sequential", "stacked"):
        numbers = ("--clients-per-domain", "1,2,1", "--rounds", "2", "--engine", engine)
        succeed(tmp_path, "run", *DOMAINS, *numbers, "--out", engine)
    first, second = accuracies(tmp_path / "sequential"), accuracies(tmp_path / "stacked")
    assert {"global/unseen/head", "own/unseen/head", "own/unseen/nearest"} <= first.keys()
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert values == pytest.approx(second[name], abs=1e-6)
        assert len(values) == 4
    report = succeed(tmp_path, "report", "sequential", "stacked", "--out", "report.html")
    assert report.code == 0
    assert "global/unseen/head" in (tmp_path / "report.html").read_text()


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    asked = (*DOMAINS, "--test-fraction", "0.25", "--clients-per-domain", "1,2,1")
    succeed(tmp_path, "run", *asked, "--rounds", "3", "--out", "whole")
    succeed(tmp_path, "run", *asked, "--rounds", "3", "--time-budget", "0.000001", "--out", "parts")
    assert result_of(tmp_path / "parts")["rounds"] == 1
    config = tmp_path / "parts" / "config.yaml"
    asked_for = config.read_text().split("\n", 2)[2]  # without the digest
    config.write_text(asked_for.replace("time_budget: 1.0e-06", "time_budget: null"))
    (tmp_path / "parts" / "result.json").unlink()
    succeed(tmp_path, "resume", "parts")
    assert accuracies(tmp_path / "parts") == accuracies(tmp_path / "whole")


def test_compare_and_sweep_take_splits_that_say_how_many_clients(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([list(range(60)), list(range(60, 90)), list(range(90, 150))]))
    grid = ("--grid", "split=iid,by:label,indices:rows.json", "--seeds", "1", "--rounds", "1", "--out", "sweep")
    small = [word for word in SMALL if word not in ("--method", "fedavg")]
    succeed(tmp_path, "sweep", *small, "--methods", "fedavg", *grid)
    numbers = {}
    for config in (tmp_path / "sweep").glob("**/config.yaml"):
        said = yaml.safe_load(config.read_text())
        numbers[said["split"].partition(":")[0] + said["split"].partition(":")[2][:5]] = said["clients"]
    assert sorted(numbers.values()) == [3, 5, 10]
    rows = ("--split", "indices:rows.json", "--seeds", "1", "--rounds", "1", "--out", "compare")
    succeed(tmp_path, "compare", *small, "--methods", "fedavg,local", *rows)
