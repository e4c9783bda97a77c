"""The tables of studies at 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from protofed.report.outcome_tables import accuracy_cell, outcome_table
from protofed.studies.comparison import Comparison, MethodRow
from protofed.studies.papers import find_target
from protofed.studies.reproduced import ReproducedCell, Reproduction
from protofed.studies.spread import Spread

OTHER = Spread.of([1.0])


def shown(outcome: object, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(outcome_table(outcome), crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def reproduced(name: str) -> Reproduction:
    """A paper's table of which every second cell is missing."""
    target = find_target(name)
    rows = [
        ReproducedCell(cell, None, missing="data missing: cifar10, encoder missing")
        if number % 2
        else ReproducedCell(cell, Spread.of([50.0, 60.0]))
        for number, cell in enumerate(target.cells)
    ]
    return Reproduction(target, "protofed reproduce", 2, rows, {}, [])


def test_a_reproduction_has_a_row_a_cell_and_says_once_what_all_have_in_common() -> None:
    made = reproduced("fedplcc/table2")
    lines = shown(made)
    rows = [line.split() for line in lines if line.startswith("domain=")]
    assert len(rows) == len(made.rows)
    assert rows[0] == ["domain=MNIST", "FedAvg", "55.00", "±", "7.07", "90.10", "-35.10"]
    assert rows[1] == ["domain=USPS", "FedAvg", "–", "85.05"]  # why is a note
    common = "in every row: one client per domain, dataset Digit-5, measured global/domain/head"
    assert " ".join(lines).endswith(common)
    assert max(map(len, lines)) <= 80


def test_a_reproduction_that_is_too_wide_keeps_every_name() -> None:
    lines = shown(reproduced("fedproto/table1"))
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    assert {"FedProto-mh", "own/own/nearest-own", "n=3;stdev=2", "94.05"} <= words


def test_a_cell_has_a_star_if_it_is_a_diagnostic_and_a_dash_if_there_is_none() -> None:
    accuracy = {"own/own/head": Spread.of([50.0, 60.0]), "own/own/nearest": Spread.of([50.0])}
    row = MethodRow("fedavg", "own/own/head", [1, 1], accuracy, ["own/own/nearest"], OTHER, OTHER, OTHER)
    names = ("own/own/head", "own/own/nearest", "global/all/head")
    assert [accuracy_cell(row, name) for name in names] == ["55.0±7.1", "50.0*", "–"]


def test_a_comparison_shows_the_score_of_each_methods_paper() -> None:
    """Also by a rule that one method alone has."""
    usual = {"own/own/head": Spread.of([50.0])}
    rows = [
        MethodRow("fedavg", "global/all/head", [1], usual, [], OTHER, OTHER, OTHER),
        MethodRow(
            "ditto", "own/own/personal", [1], usual | {"own/own/personal": Spread.of([70.0])}, [], OTHER, OTHER, OTHER
        ),
    ]
    lines = [line.split() for line in shown(Comparison([], rows), width=160)]
    (names,) = [line for line in lines if line[:1] == ["method"]]
    cells = {line[0]: line[names.index("own/own/personal")] for line in lines if line[:1] in (["fedavg"], ["ditto"])}
    assert cells == {"fedavg": "–", "ditto": "70.0"}
