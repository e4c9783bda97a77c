"""The level field: what is chosen is the best on validation data of what every seed has finished."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.level_field import read, table, tuned
from benchmarks.results_page import DOCS


def run(method: str, lr: float, seed: int, val: float, own: str = "global/val/head", **params: float) -> dict[str, Any]:
    accuracy = {own: val, "own/own/head": val + 1, "own/own/mine": val + 2}
    options = {"method": method, "lr": lr, "seed": seed, "params": params, "rounds": 3}
    sent = {"bytes_up": 1e6, "bytes_down": 2e6, "score": "own/own/mine"}
    return {"setting": "s", "options": options, "accuracy": accuracy, **sent}


def diverged(method: str, lr: float, seed: int) -> dict[str, Any]:
    options = {"method": method, "lr": lr, "seed": seed, "params": {}, "rounds": 3}
    return {"setting": "s", "options": options, "failed": "diverged"}


def test_the_best_mean_on_validation_data_is_chosen() -> None:
    runs = [run("a", lr, seed, val) for lr, val in ((0.1, 50), (0.2, 60)) for seed in (0, 1)]
    runs += [run("a", 0.3, 0, 99), diverged("a", 0.3, 1)]  # a rate at which a seed diverges
    runs += [run("a", 0.4, 0, 98)]  # one that not every seed has played
    runs += [{**run("b", 0.1, 0, 70), "setting": "another"}]
    (found,) = tuned(runs, "s")
    assert (found.method, found.values, found.tried, found.failed) == ("a", {"lr": 0.2}, 4, 1)
    assert found.validation == (60, 0)
    assert found.score("own/own/head") == (61, 0)
    assert found.score("global/all/head") is None
    assert found.sent == 3.0


def test_parameters_vary_too_and_a_method_may_have_no_averaged_model() -> None:
    runs = [run("a", 0.1, 0, 10.0 * lam, "own/val/head", lam=lam) for lam in (1.0, 3.0, 2.0)]
    (found,) = tuned(runs, "s")
    assert found.values == {"params.lam": 3.0}
    assert found.validation == (30, 0)


def test_the_table_has_a_row_a_method_and_asks_by_its_own_rule() -> None:
    runs = [run("a", lr, seed, 50 + seed) for lr in (0.1, 0.2) for seed in (0, 2)] + [run("b", 0.1, 0, 80)]
    rows = table(runs, "s", ["own/own/{rule}", "global/val/head"]).splitlines()
    assert rows[0] == "| method | chosen | diverged | seeds | validation | own/own | global/val | MB sent |"
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| b", "| a"]
    assert "| lr 0.1 | 0 of 2 | 2 | 51.0 ± 1.4 | 53.0 ± 1.4 |" in rows[3]


@pytest.mark.parametrize("setting", ["mnist-dir0.05", "cifar10-nid1-0.2", "digit5"])
def test_the_recorded_settings_are_complete(setting: str) -> None:
    runs = [one for one in read(DOCS / "results" / "level-field.jsonl") if one["setting"] == setting]
    found = tuned(runs, setting)
    assert len(found) == 10
    budgets = {(one.tried, len(one.runs)) for one in found if (setting, one.method) != ("digit5", "fedplcc")}
    assert len(budgets) == 1  # the same for all, but for the one whose main weight was varied, too
