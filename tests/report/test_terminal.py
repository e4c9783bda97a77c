"""Tables: whatever the width, every name and every number is on one line, and lines fit."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from protofed.report import terminal
from protofed.report.terminal import GAP, UNKNOWN_WIDTH, TextTable, console

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,38}[a-z]", fullmatch=True)
SCORES = st.sampled_from(["own/own/head", "own/own/nearest", "global/domain/head", "own/novel/5-way-1-shot", "seconds"])
NUMBERS = st.builds("{:.1f}±{:.1f}{}".format, st.floats(0, 100), st.floats(0, 40), st.sampled_from(["", "*"]))
WIDTHS = st.integers(40, 200)


def lines_of(table: TextTable, width: int) -> list[str]:
    """What a console of this width shows."""
    shown = Console(width=width, file=io.StringIO())
    with shown.capture() as capture:
        shown.print(table, crop=False)
    return [line.rstrip() for line in capture.get().splitlines()]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: many methods, names of any length, a number in every cell."""
    titles = ["method", *draw(st.lists(SCORES, min_size=1, max_size=5, unique=True))]
    methods = draw(st.lists(NAMES, min_size=1, max_size=22, unique=True))
    return titles, [[name, *(draw(NUMBERS) for _ in titles[1:])] for name in methods]


@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 2), WIDTHS)
def test_names_and_numbers_are_never_broken_and_lines_fit(
    made: tuple[list[str], list[list[str]]], keys: int, width: int
) -> None:
    titles, rows = made
    shown = lines_of(TextTable(titles, rows, "a title of several words", "and a caption", keys=keys), width)
    words = [line.split() for line in shown]
    for name, *numbers in rows:
        assert any(name in line for line in words)
        for number in numbers:
            assert any(number in line for line in words)
    for title in titles:
        assert any(title in line for line in words)
    columns = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    straight = sum(columns[:keys]) + GAP * keys + max(columns[keys:], default=-GAP)
    turned = max(map(len, titles)) + GAP + max(len(cell) for row in rows for cell in row)
    assert max(map(len, shown)) <= max(width, min(straight, turned))


@settings(max_examples=60, deadline=None)
@given(tables(), WIDTHS)
def test_a_number_stands_in_the_line_of_its_method_or_below_its_name(
    made: tuple[list[str], list[list[str]]], width: int
) -> None:
    """Whichever way the table is arranged, each cell can be read off: by row, or by column."""
    titles, rows = made
    shown = [line.split() for line in lines_of(TextTable(titles, rows), width)]
    turned, head = False, []
    seen: dict[tuple[str, str], str] = {}
    for line in shown:
        if line[:1] == ["method"]:
            head, turned = line, line[1] not in titles
        elif len(line) == len(head) and not line[0].startswith("─"):
            for title, cell in zip(head[1:], line[1:], strict=True):
                seen[(title, line[0]) if turned else (line[0], title)] = cell
    assert seen == {(row[0], title): cell for row in rows for title, cell in zip(titles[1:], row[1:], strict=True)}


@settings(max_examples=60, deadline=None)
@given(tables(), st.lists(st.from_regex(r"[a-z]{1,12}", fullmatch=True), min_size=1, max_size=30), WIDTHS)
def test_text_is_wrapped_by_words_or_cut(made: tuple[list[str], list[list[str]]], words: list[str], width: int) -> None:
    rows = [[row[0], row[1], " ".join(words)] for row in made[1]]
    wrapped = lines_of(TextTable(("name", "number", "text"), rows, text="wrapped"), width)
    assert {*words} <= {word for line in wrapped for word in line.split()}
    cut = lines_of(TextTable(("name", "number", "text"), rows, text="cut"), width)
    blocks = 1 + sum(not line for line in cut)
    assert len(cut) == blocks * (len(rows) + 2) + blocks - 1  # a line a row
    for shown in (wrapped, cut):
        assert all(any(cell in line.split() for line in shown) for row in rows for cell in row[:2])


def test_a_wide_table_is_turned_before_it_is_divided() -> None:
    table = TextTable(("method", "own/own/head", "own/own/nearest", "seconds"), [["fedavg", "1.0", "2.0", "3.0"]])
    assert lines_of(table, 60)[0].split() == [*table.titles]
    turned = [line.split() for line in lines_of(table, 30)]
    assert turned[0] == ["method", "fedavg"]
    assert turned[3] == ["own/own/nearest", "2.0"]
    many = TextTable(table.titles, [[f"method-{number}", "1.0", "2.0", "3.0"] for number in range(9)])
    blocks = [line.split() for line in lines_of(many, 30) if line.startswith("method ")]
    assert blocks == [["method", "own/own/head"], ["method", "own/own/nearest"], ["method", "seconds"]]


def test_every_block_repeats_the_columns_that_tell_rows_apart() -> None:
    rows = [[alpha, method, "1.0", "2.0"] for alpha in ("0.1", "10") for method in ("fedavg", "fedproto")] * 2
    table = TextTable(("alpha", "method", "own/own/head", "own/own/nearest"), rows, align="rlr", keys=2)
    heads = [line.split()[:2] for line in lines_of(table, 40) if "method" in line]
    assert heads == [["alpha", "method"]] * 2


def test_every_table_of_the_package_is_one_of_these() -> None:
    package = Path(terminal.__file__).parents[1]
    users = [path.name for path in package.rglob("*.py") if "rich.table" in path.read_text(encoding="utf-8")]
    assert users == ["terminal.py"]


def test_a_name_is_text_and_neither_markup_nor_a_command_to_the_terminal() -> None:
    lines = lines_of(TextTable(("run", "left"), [["[bold]x\x1b[31m", "3 s"]]), 80)
    assert any("[bold]x\\x1b[31m" in line for line in lines)


@pytest.mark.parametrize(("columns", "width"), [("63", 63), ("", UNKNOWN_WIDTH), ("wide", UNKNOWN_WIDTH)])
def test_a_pipe_is_as_wide_as_columns_says(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert console().width == width


def test_a_terminal_is_as_wide_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((97, 40)))  # pytest asks, too
    assert console().width == 97
