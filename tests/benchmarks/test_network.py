"""What a federation costs: the tables are made of what was measured, and a client's memory stays within its bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import network
from benchmarks.marked import RESULTS
from benchmarks.network import BEGIN, CLIENT, END, main, measure, text

PAGE = RESULTS.parent / "deployment.md"
BOUND = 650e6
"""Bytes that a client with the CNN takes at most, by docs/deployment.md."""


def row(**changed: Any) -> dict[str, Any]:
    made = {"way": "now", "clients": 1, "model": "ballast", "megabytes": 1.006, "seconds": 0.5, "with_test": 0.6}
    made |= {"cpu": {"worker": 0.04}, "memory": {"worker": 300_000_000, "deploy client": 100_400_000}}
    return made | changed


def test_tables_are_made_of_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def measured(clients: int, model: float | str, rounds: int, source: Path | None) -> dict[str, Any]:
        asked.append((clients, model, rounds, source))
        return row(clients=clients, model=model if isinstance(model, str) else "ballast")

    monkeypatch.setattr(network, "measure", measured)
    page, out = tmp_path / "page.md", tmp_path / "network.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    words = ["--clients", "1", "--megabytes", "1", "--rounds", "3", "--out", str(out), "--page", str(page)]
    for _ in range(2):  # what is in the file is not measured again
        assert main(words) == 0
    assert asked == [(1, 1.0, 3, None), (1, "cnn", 3, None)]
    found = json.loads(out.read_text())
    assert list(found) == ["now, 1 clients, 1 MB", "now, 1 clients, cnn"]
    assert page.read_text() == f"before\n{BEGIN}\n\n{text(found)}\n\n{END}\nafter\n"
    assert "| now | 1 | ballast | 1 MB | 0.50 | 0.60 | 1.20 |\n" in text(found)
    assert "| now | 1 | cnn | 1 MB | worker | 0.04 | 300 |\n" in text(found)
    assert text(found).endswith("\n\nA client with `--model cnn` takes 400 MB in all: 300 its worker and 100 its node.")


def test_the_page_is_made_of_the_file() -> None:
    path = RESULTS / "network.json"
    if not path.exists():
        pytest.skip("python -m benchmarks.network --page docs/deployment.md has not written it yet")
    part = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    assert part.strip() == text(json.loads(path.read_text("utf-8")))


@pytest.mark.network
def test_a_client_with_the_cnn_takes_the_memory_that_the_page_says() -> None:
    found = measure(1, "cnn", 3, None)
    assert sum(found["memory"][kind] for kind in CLIENT) <= BOUND
    assert min(found["memory"][kind] for kind in CLIENT) > 20e6  # both were seen
    assert f"at most {BOUND / 1e6:.0f} MB" in PAGE.read_text("utf-8")
