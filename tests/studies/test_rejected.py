"""Rejected and suspected uploads, and prototypes per class, are columns wherever numbers of runs are shown."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import pytest

from protofed.api import compare, sweep
from protofed.messages import Upload
from protofed.methods.base import Trained, Turn
from protofed.methods.fedproto import FedProto
from protofed.report.html import gather
from protofed.report.outcome_tables import outcome_table
from protofed.report.terminal import TextTable, result_table
from protofed.runs.result import FURTHER, Result
from protofed.server.round import Round
from protofed.studies.comparison import Comparison
from tests.support.command_line import invoke

TINY: dict[str, Any] = {"model": "cnn", "train_size": 150, "clients": 5, "device": "cpu", "threads": 1}
NAMES = ("local", "fedproto", "liar")
ATTACKED = {"attack": "sign-flip", "attackers": 0.2, "defence": "outliers"}


@dataclass(frozen=True)
class Liar(FedProto):
    """The first client of every round sends prototypes that are no numbers."""

    name: ClassVar[str] = "liar"

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        sent = super().upload(trained, turn)
        for prototypes in sent.prototypes.values():
            prototypes.vectors[:1] = float("nan")
        return sent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("rejected") / "c"
    options = TINY | ATTACKED | {"rounds": 3, "engine": "stacked"}
    return compare(["local", "fedproto", Liar], 2, jobs=1, out=out, quiet=True, **options)


def counted(run: Result) -> dict[str, float | None]:
    """What the rounds of a run say, counted by hand."""
    rounds = [json.loads(line) for line in (Path(str(run.folder)) / "rounds.jsonl").read_text().splitlines()]
    each = [sum(numbers) for numbers in zip(*(told["each"] for told in rounds[-1]["prototypes"].values()), strict=True)]
    some = [number for number in each if number]
    rejected = sum(len(line.get("left_out", {})) for line in rounds)
    suspected = sum(len(line["suspected"]) for line in rounds)
    return dict(zip(FURTHER, (sum(some) / len(some) if some else None, rejected or None, suspected), strict=True))


def column(table: TextTable, title: str) -> list[str]:
    """The cells of a table below a title."""
    place = list(table.titles).index(title)
    return [row[place] for row in table.rows]


def test_a_run_says_what_its_rounds_say(found: Comparison) -> None:
    for run in found.results:
        assert {name: getattr(run, name) for name in FURTHER} == pytest.approx(counted(run))
        told = json.loads((Path(str(run.folder)) / "result.json").read_text())
        assert {name: told[name] for name in FURTHER if name in told} == {
            name: value for name, value in counted(run).items() if value is not None
        }
    liar = next(run for run in found.results if run.method == "liar")
    assert liar.rejected_uploads == 3  # one a round
    assert "prototypes/class 1, rejected 3, suspected " in str(result_table(liar).caption)


def test_a_comparison_has_columns_and_lines_of_them(found: Comparison) -> None:
    table = outcome_table(found)
    assert column(table, "rejected") == ["–", "–", "3.0"]
    assert column(table, "prototypes/class") == ["–", "1.0", "1.0"]
    means = [
        fmean(counted(run)["suspected_uploads"] or 0 for run in found.results if run.method == name) for name in NAMES
    ]
    assert column(table, "suspected") == [f"{mean:.1f}" for mean in means]
    assert any(means)
    with (Path(str(found.folder)) / "compare.csv").open() as file:
        lines = {(line["method"], line["quantity"]): float(line["mean"]) for line in csv.DictReader(file)}
    assert lines["liar", "rejected_uploads"] == 3
    assert ("local", "rejected_uploads") not in lines
    assert [lines[name, "suspected_uploads"] for name in NAMES] == means


def test_the_report_has_columns_of_them(found: Comparison) -> None:
    data = gather([Path(str(found.folder))])
    told = {row["label"]: row["further"] for row in data["summary"]}
    assert told["liar"]["rejected"] == 3
    assert told["fedproto"]["prototypes/class"] == 1
    assert list(told["local"]) == ["suspected"]


def test_a_data_frame_says_whose_upload_was_rejected_in_which_round(found: Comparison) -> None:
    pytest.importorskip("pandas")
    frame = found.frame()
    rejected = frame[frame["rejected"]]
    assert set(rejected["method"]) == {"liar"}
    assert set(rejected["client"]) == {0}
    assert set(rejected["round"]) == {1, 2, 3}
    for run in found.results:
        of_run = frame[(frame["method"] == run.method) & (frame["seed"] == run.seed) & frame["suspected"]]
        pairs = {(played.round, client) for played in run.history for client in played.suspected or ()}
        assert {*zip(of_run["round"], of_run["client"], strict=True)} == pairs
    each = frame[frame["method"] == "fedproto"]["prototypes_per_class"]
    assert set(each) == {1.0}
    assert frame[frame["method"] == "local"]["prototypes_per_class"].isna().all()


def test_a_sweep_has_columns_of_them_in_its_table_and_file(tmp_path: Path) -> None:
    options = TINY | {"rounds": 2, "engine": "stacked"}
    made = sweep({"lr": [0.01, 0.02]}, [Liar], 1, jobs=1, out=tmp_path / "s", quiet=True, **options)
    assert column(outcome_table(made), "rejected") == ["2.0", "2.0"]
    with (tmp_path / "s/sweep.csv").open() as file:
        lines = [line["mean"] for line in csv.DictReader(file) if line["quantity"] == "rejected_uploads"]
    assert lines == ["2.0", "2.0"]


def test_one_that_did_not_answer_is_not_rejected(found: Comparison) -> None:
    played = found.results[0].history[0]
    left_out = {3: "it did not answer", 1: "refused: no", 2: "it refuses: turns", 0: "of public images: refused: no"}
    assert Round.from_json({**played.to_json(), "left_out": left_out}, 1).rejected == [1, 0]


def test_where_nothing_applies_there_is_no_column(tmp_path: Path) -> None:
    flags = ("--train-size", "100", "--clients", "2", "--rounds", "1", "--model", "cnn", "--jobs", "1", "--seeds", "1")
    outcome = invoke(tmp_path, "compare", "--method", "local,fedavg", *flags, "--device", "cpu", "--out", "c")
    assert outcome.code == 0
    for word in ("prototypes/class", "rejected", "suspected"):
        assert word not in outcome.out
    assert not {*FURTHER} & {*json.loads((tmp_path / "c/local-seed0/result.json").read_text())}
