"""The table of attacks in docs/security.md: what it marks, and that it is what the numbers say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import trust
from benchmarks.trust import ALPHAS, BEGIN, COST, DEFENCE, END, LOST, SEEDS, Cell, cells

DOCS = Path(trust.__file__).parent.parent / "docs"


def made(**values: float) -> dict[str, dict[str, Any]]:
    """Runs of every attack on digits that all end at 90, but for `values`: those of FedProto, defended."""
    known: dict[str, dict[str, Any]] = {}
    for cell in cells(["digits"], ALPHAS):
        told = values.get(cell.attack.replace("-", "_")) if cell.method == "fedproto" else None
        known[cell.key] = {"value": 90.0 if told is None or cell.defence == "none" else told, "seconds": 1.0}
    return known


def marked(known: dict[str, dict[str, Any]]) -> list[str]:
    """Attacks in whose line something is marked."""
    return [line.split("|")[1].strip() for line in trust.page(known).splitlines() if "✗" in line]


@pytest.mark.parametrize("attack", ["none", *trust.PROMISED])
def test_what_is_promised_is_marked_when_it_is_not_kept(attack: str) -> None:
    allowed, name = COST if attack == "none" else LOST, attack.replace("-", "_")
    assert marked(made(**{name: 90.0 - allowed})) == []
    assert marked(made(**{name: 90.0 - allowed - 0.5})) == [attack]


def test_what_is_not_promised_is_reported_as_it_is() -> None:
    known = made(backdoor=20.0, collusion=20.0, free_rider=20.0)
    assert marked(known) == []
    assert trust.page(known).count("20.0 ± 0.0") == 3 * len(ALPHAS)


def test_a_run_that_failed_breaks_the_promise_and_is_counted() -> None:
    known = made()
    known[Cell("digits", ALPHAS[0], "fedsc", "sign-flip", DEFENCE, 1).key] = {"value": None, "why": "nan"}
    assert marked(known) == ["sign-flip"]
    assert f"1 of {SEEDS} failed ✗" in trust.page(known)


def test_the_most_that_is_lost_is_named() -> None:
    text = trust.page(made(none=89.0, label_flip=86.5, backdoor=1.0))
    assert "without attack 1.0 points (fedproto)" in text
    assert "to stop 3.5 points (fedproto, label-flip)" in text


def test_what_is_missing_is_left_out() -> None:
    known = made()
    del known[Cell("digits", ALPHAS[0], "fedsc", "backdoor", "none", 2).key]
    line = next(line for line in trust.page(known).splitlines() if line.startswith("| backdoor"))
    assert line.count("90.0 ± 0.0 →") == len(trust.METHODS) - 1
    assert line.endswith("| – |")


def test_a_cell_is_played_as_the_table_says(tmp_path: Path) -> None:
    experiment = Cell("digits", 0.5, "mp-fedcl", "sign-flip", "outliers", 2).experiment(str(tmp_path))
    assert (experiment.clients, experiment.attackers, experiment.rounds, experiment.alpha) == (20, 0.2, 20, 0.5)
    assert (experiment.attack, experiment.defence, experiment.seed) == ("sign-flip", "outliers", 2)


def test_the_page_shows_the_committed_numbers_and_every_promise_is_kept() -> None:
    known = json.loads((DOCS / "results/trust.json").read_text("utf-8"))
    assert known.keys() == {cell.key for cell in cells(list(trust.DATASETS), ALPHAS)}
    text = (DOCS / "security.md").read_text("utf-8")
    found = re.search(f"{re.escape(BEGIN)}\n\n(.*)\n\n{re.escape(END)}", text, re.DOTALL)
    assert found
    assert found[1] == trust.page(known)
    assert marked(known) == []
