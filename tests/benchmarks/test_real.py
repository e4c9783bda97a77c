"""The tables of docs/tutorials/README.md: what they say of their numbers, and that these are the committed ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import heart, real
from benchmarks.marked import RESULTS, write_part
from protofed.methods import method_class

PAGE = RESULTS.parent / "tutorials" / "README.md"


def part(begin: str, end: str) -> str:
    """What the page has between two marks."""
    found = re.search(f"{re.escape(begin)}\n\n(.*)\n\n{re.escape(end)}", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    return found[1]


def committed(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def test_the_page_shows_the_committed_numbers() -> None:
    assert part(real.BEGIN, real.END) == real.page()
    assert part(heart.BEGIN, heart.END) == heart.page(committed("real-flamby"))


@pytest.mark.parametrize("name", real.TABLES)
def test_every_method_had_the_same_budget_and_was_tested_with_what_was_chosen(name: str) -> None:
    found = committed(name)
    assert sorted(real.words_of(found["command"])) == sorted(real.words_of(real.TABLES[name].command))
    assert [row["method"] for row in found["rows"]] == list(real.METHODS)
    rates = {float(rate) for rate in real.TABLES[name].rates.split(",")}
    for tuned, row in zip(found["tuning"], found["rows"], strict=True):
        assert tuned["method"] == row["method"]
        assert {trial["setting"]["lr"] for trial in tuned["trials"]} == rates
        assert tuned["runs"] == len(rates)
        best = max(trial["accuracy"]["mean"] for trial in tuned["trials"] if trial["accuracy"])
        assert best in [t["accuracy"]["mean"] for t in tuned["trials"] if t["setting"] == tuned["chosen"]]
        assert row["score"] == method_class(row["method"]).score
        assert all(len(one["values"]) == real.SEEDS for one in row["accuracy"].values() if one)


def test_the_command_has_no_empty_words() -> None:
    for table in real.TABLES.values():
        words = real.words_of(table.command)
        assert words[0] == "compare"
        assert all(word.strip() for word in words)


def test_a_client_model_answers_by_the_rule_of_its_paper() -> None:
    assert real.columns("real-series", "own/own/personal")[0] == "own/own/personal"
    assert real.columns("real-series", "own/all/nearest") == [
        "own/own/nearest",
        "own/own/nearest:f1",
        "global/all/head",
        "global/all/head:f1",
    ]
    assert real.columns("real-series", "global/all/head")[0] == "own/own/head"


def test_the_highest_mean_is_bold_and_what_is_absent_is_a_dash(tmp_path: Path) -> None:
    def spread(mean: float) -> dict[str, Any]:
        return {"mean": mean, "std": 1.0, "values": [mean]}

    def row(method: str, score: str, mean: float, averaged: float | None) -> dict[str, Any]:
        names = real.columns("real-series", score)
        values = [mean, mean, averaged, averaged]
        accuracy = {name: None if value is None else spread(value) for name, value in zip(names, values, strict=True)}
        sent = {"bytes_up_per_round": spread(1e3), "bytes_down_per_round": spread(2e3)}
        return {"method": method, "score": score, "accuracy": accuracy, **sent}

    rows = [row("a", "own/own/nearest", 90.0, None), row("b", "global/all/head", 80.0, 70.0)]
    tuning = [{"method": name, "chosen": {"lr": 0.1}, "runs": 2} for name in "ab"]
    found = {"command": "protofed compare", "rows": rows, "tuning": tuning}
    (tmp_path / "real-series.json").write_text(json.dumps(found))
    lines = real.page(tmp_path).splitlines()
    assert "| a | 0.1 | by nearest | **90.0 ± 1.0** | **90.0 ± 1.0** | – | – | 3 |" in lines
    assert "| b | 0.1 | by head | 80.0 ± 1.0 | 80.0 ± 1.0 | **70.0 ± 1.0** | **70.0 ± 1.0** | 3 |" in lines
    assert lines[-1].startswith("4 runs chose learning rates")


def test_flambys_table_counts_the_seeds_above_pooled_training() -> None:
    limit = heart.PUBLISHED["pooled"]
    rows = {
        "often": {"lr": 0.01, "values": {"global/all/head": [limit + 1, limit + 1, limit - 0.5]}},
        "once": {"lr": 0.01, "values": {"own/all/nearest": [limit + 1, limit - 2, limit - 2]}},
    }
    text = heart.page({"by themselves": {}, "FLamby's rate": rows})
    assert "| often, FLamby's rate | 0.01 | global/all/head | 80.0 ± 0.9 |  | – | – | 2 of 3 |" in text
    assert "| 1 of 3 |" in text
    assert text.splitlines()[-1] == "Above 79.5 on the mean with FLamby's rate: often (global/all/head, 80.0, 2 of 3)."


def test_only_the_marked_part_of_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<a>\n\nold\n\n<b>\nafter\n")
    write_part(page, "new", "<a>", "<b>")
    assert page.read_text() == "before\n<a>\n\nnew\n\n<b>\nafter\n"
