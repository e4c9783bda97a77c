"""The table of attacks in docs/trust.md: what it marks, and that it is what the numbers say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trust
from benchmarks.trust import BEGIN, COST, DEFENCE, END, LOST, ORDER, SETTINGS, Cell, cells
from protofed.trust.attacks import ATTACKS

DOCS = Path(trust.__file__).parent.parent / "docs"
TWO = ("digits-mlp", "default")


def made(**values: float) -> dict[str, dict[str, Any]]:
    """Runs of every attack in two settings that all end at 90, but for `values`: those of FedProto, defended."""
    known: dict[str, dict[str, Any]] = {}
    for cell in cells(TWO):
        told = values.get(cell.attack.replace("-", "_")) if cell.method == "fedproto" else None
        known[cell.key] = {"value": 90.0 if told is None or cell.defence == "none" else told, "honest_blamed": 0.25}
    return known


def marked(known: dict[str, dict[str, Any]]) -> list[str]:
    """Attacks in whose line something is marked."""
    return [line.split("|")[1].strip() for line in trust.page(known).splitlines() if "✗" in line]


def test_every_attack_is_in_the_table() -> None:
    assert set(ORDER) == {"none", *ATTACKS}


@pytest.mark.parametrize("attack", ["none", "adaptive", "backdoor"])
def test_what_is_promised_is_marked_when_it_is_not_kept(attack: str) -> None:
    allowed = COST if attack == "none" else LOST
    assert marked(made(**{attack: 90.0 - allowed})) == []
    assert marked(made(**{attack: 90.0 - allowed - 0.5})) == [attack]  # in one of the two settings


def test_a_run_that_failed_breaks_the_promise_and_is_counted() -> None:
    known = made()
    known[Cell("digits-mlp", "fedsc", "sign-flip", DEFENCE, 1).key] = {"value": None, "why": "nan"}
    assert marked(known) == ["sign-flip"]
    assert "1 failed ✗" in trust.page(known)


def test_the_most_that_is_lost_is_named() -> None:
    text = trust.page(made(none=89.0, label_flip=86.5))
    assert "without attack 1.0 points (fedproto)" in text
    assert "attacked 3.5 points (fedproto, label-flip)" in text


def test_what_is_missing_is_left_out() -> None:
    known = made()
    del known[Cell("digits-mlp", "fedsc", "backdoor", DEFENCE, 2).key]
    line = next(line for line in trust.page(known).splitlines() if line.startswith("| backdoor"))
    assert line.count("90.0") == len(trust.METHODS) - 1
    assert trust.page({}) == ""


def test_a_cell_is_played_as_the_table_says(tmp_path: Path) -> None:
    experiment = Cell("mnist-cnn-1", "mp-fedcl", "sign-flip", DEFENCE, 2).experiment(str(tmp_path))
    assert (experiment.clients, experiment.attackers, experiment.rounds, experiment.alpha) == (20, 0.2, 20, 0.5)
    assert (experiment.attack, experiment.defence, experiment.seed) == ("sign-flip", "default", 2)
    assert (experiment.model, experiment.epochs, experiment.data_dir) == ("cnn", 1, str(tmp_path))
    assert all(Cell(name, "fedavg", "none", "none", 0).experiment(None).rounds == 20 for name in SETTINGS)


def test_a_table_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """What the file has is not played again."""
    file, page = tmp_path / "trust.json", tmp_path / "page.md"
    file.write_text(json.dumps(made()))
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    words = ["--out", str(file), "--page", str(page), "--setting", "digits-mlp", "--jobs", "1"]
    assert trust.main(words) == 0
    assert json.loads(file.read_text()) == made()
    assert "old" not in page.read_text()
    assert page.read_text().endswith("\nafter\n")


def test_the_page_shows_the_committed_numbers() -> None:
    known = json.loads((DOCS / "results/trust.json").read_text("utf-8"))
    assert known.keys() <= {cell.key for cell in cells(list(SETTINGS))}
    text = (DOCS / "trust.md").read_text("utf-8")
    found = re.search(f"{re.escape(BEGIN)}\n\n(.*)\n\n{re.escape(END)}", text, re.DOTALL)
    assert found
    assert found[1] == (trust.page(known) or "No numbers yet.")
