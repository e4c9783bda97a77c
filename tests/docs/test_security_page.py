"""Every line of docs/security.md's table of who can do what names the tests that show it, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Who can do what")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and "shown by" not in line
]


def named(cell: str) -> list[tuple[str, str]]:
    """The file and the words of each test in a cell of the last column."""
    found = []
    for part in cell.split(";"):
        match = re.fullmatch(r"\s*`([\w/]+)`: (.+)", part)
        if match is not None:
            words = re.sub(r"\s*\[[^\]]*\]", "", match[2]).split(",")
            found += [(match[1], one.strip()) for one in words if one.strip()]
    return found


def file_of(name: str) -> Path:
    """A file of tests/deploy, or with its folder of another one below tests."""
    folder, _, last = name.rpartition("/")
    return ROOT / "tests" / (folder or "deploy") / f"test_{last}.py"


def test_the_table_is_read() -> None:
    assert len(ROWS) > 25
    assert {len(row) for row in ROWS} == {4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "; ".join(filter(None, row[:3]))[:60])
def test_a_line_has_a_test_that_shows_it(row: list[str]) -> None:
    who, can, cannot, shown = row
    assert can or cannot, who
    assert named(shown), f"no test is named: {shown!r}"
    for name, words in named(shown):
        text = file_of(name).read_text(encoding="utf-8")
        wanted = "test_" + words.replace(" ", "_")
        assert re.search(rf"^def {wanted}\(", text, flags=re.MULTILINE), f"{name}: {words}"
