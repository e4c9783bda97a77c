"""Clients with data of their own that are no pictures: tables, series and text, each with a file of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.deploy.connections import OTHER_LAYOUT
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.experiment import Experiment
from tests.deploy.test_rounds import QUICK, lines
from tests.support.loopback import Loopback, with_folder

COLUMNS = ("age", "pulse", "sex")


def table(path: Path, number: int, columns: tuple[str, ...] = COLUMNS, sexes: tuple[str, ...] = ("f", "m")) -> str:
    rng = np.random.default_rng(number)
    rows = []
    for row in range(40):
        values = {"age": f"{rng.integers(30, 80)}", "pulse": f"{60 + 30 * (row % 2) + rng.integers(9)}"}
        values["sex"] = sexes[row // 2 % len(sexes)]
        rows.append(",".join([*(values[name] for name in columns), ("well", "ill")[row % 2]]))
    (path / f"{number}.csv").write_text("\n".join([",".join([*columns, "class"]), *rows]) + "\n")
    return f"csv:{path / f'{number}.csv'}"


def text(path: Path, number: int, more: str = "") -> str:
    words = (("sun", "warm", "dry"), ("rain", "cold", "wet"))
    rows = [f"{('fine', 'bad')[row % 2]}\t{' '.join(words[row % 2])} {row % 7} {more}" for row in range(40)]
    (path / f"{number}.tsv").write_text("\n".join(rows) + "\n")
    return f"text:{path / f'{number}.tsv'}"


def series(path: Path, number: int) -> str:
    rng = np.random.default_rng(number)
    labels = np.arange(40) % 2
    waves = (np.linspace(-1, 1, 12) * (1 - 2 * labels)[:, None])[:, None] + rng.normal(0, 0.1, (40, 2, 12))
    np.savez(path / f"{number}.npz", x=waves.astype(np.float32), labels=labels)
    return f"npz:{path / f'{number}.npz'}"


def play(place: Path, data: list[str], method: str, model: str, **more: Any) -> list[dict[str, Any]]:
    nodes = {100 + k: with_folder(place, k, data=said) for k, said in enumerate(data)}
    machine: dict[str, Any] = {"engine": "sequential", "device": "cpu", "threads": 1}
    asked = {
        "method": method,
        "model": model,
        "clients": len(data),
        "rounds": 4,
        "lr": 0.1,
        "batch_size": 8,
        **machine,
        **more,
    }
    (place / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(len(data))}))
    settings = Settings(str(place / "run"), nodes=str(place / "nodes.json"), **{**QUICK, "deadline": 30.0})
    serve(Loopback(nodes), Experiment.from_mapping(asked), settings)
    return lines(place / "run")


@pytest.mark.parametrize(
    ("make", "model", "method"),
    [
        (table, "mlp", "mp-fedcl"),
        (table, "linear", "fedavg"),
        (text, "embedding-bag", "fedavg"),
        (series, "cnn1d", "fedproto"),
        (series, "gru", "fedavg"),
    ],
)
def test_they_are_trained_on_and_tested(make: Any, model: str, method: str, tmp_path: Path) -> None:
    found = play(tmp_path, [make(tmp_path, number) for number in range(3)], method, model)
    assert [line["participants"] for line in found] == [[0, 1, 2]] * 4
    assert not any("left_out" in line for line in found)
    assert found[-1]["accuracy"]["own/own/head"] > 60


def test_who_has_other_columns_is_not_averaged_with_the_others(tmp_path: Path) -> None:
    """The same number of columns in another order, or with another category, would go unnoticed."""
    data = [table(tmp_path, 0), table(tmp_path, 1), table(tmp_path, 2, ("pulse", "age", "sex"))]
    data.append(table(tmp_path, 3, sexes=("female", "male")))
    found = play(tmp_path, data, "fedavg", "mlp")
    assert found[-1]["participants"] == [0, 1]
    assert found[-1]["left_out"] == {"2": OTHER_LAYOUT, "3": OTHER_LAYOUT}


def test_who_shares_no_weights_may_have_other_columns(tmp_path: Path) -> None:
    data = [table(tmp_path, 0), table(tmp_path, 1, ("pulse", "age", "sex")), table(tmp_path, 2, ("age", "sex"))]
    assert play(tmp_path, data, "fedproto", "mlp")[-1]["participants"] == [0, 1, 2]


def test_words_of_their_own_are_not_averaged(tmp_path: Path) -> None:
    data = [text(tmp_path, 0), text(tmp_path, 1, "fog"), text(tmp_path, 2, "ice")]
    found = play(tmp_path, data, "fedavg", "embedding-bag")
    assert found[-1]["participants"] == [0]
    assert found[-1]["left_out"] == {"1": OTHER_LAYOUT, "2": OTHER_LAYOUT}
