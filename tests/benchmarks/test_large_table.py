"""What a table of a million rows takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.large_table import BEGIN, END, ROWS, measured, page
from benchmarks.marked import RESULTS


def test_the_page_has_the_numbers_of_the_file() -> None:
    found = json.loads((RESULTS / "large-table.json").read_text())
    assert found["rows"] == ROWS
    text = (RESULTS.parent / "tables.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == page(found)


def test_a_small_table_is_measured(tmp_path: Path) -> None:
    found = measured(tmp_path, rows=300)
    assert found["samples"] == 300 * 50 * 4
    assert found["file"] == (tmp_path / "large.csv").stat().st_size
    assert len((tmp_path / "large.csv").read_text().splitlines()) == 301


@pytest.mark.slow
def test_memory_of_reading(tmp_path: Path) -> None:
    """A million rows take at most three times the size of their file, over what a small table takes."""
    found = measured(tmp_path)
    assert 0 < found["bytes"] <= 3 * found["file"]
