"""Every line of docs/security.md's table of who can do what names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")


def shown() -> list[tuple[str, str]]:
    """The file and the words of each test that the last column names."""
    table = PAGE.partition("## Who can do what")[2].partition("\n## ")[0]
    rows = [line.rstrip(" |").rpartition("|")[2] for line in table.splitlines() if line.startswith("|")]
    cells = [part for row in rows for part in row.split(";")]
    named = [re.fullmatch(r"\s*`(\w+)`: (.*)", cell) for cell in cells]
    return [
        (match[1], words.strip())
        for match in named
        if match is not None
        for words in re.sub(r"\s*\[[^\]]*\]", "", match[2]).split(",")
        if words.strip()
    ]


def test_the_tests_of_the_table_are_there() -> None:
    missing = []
    for name, words in shown():
        text = (ROOT / f"tests/deploy/test_{name}.py").read_text(encoding="utf-8")
        wanted = "test_" + re.sub(r"[ .]", "_", words)
        if not re.search(rf"^(async )?def {wanted}\w*\(", text, flags=re.MULTILINE):
            missing.append(f"{name}: {words}")
    assert len(shown()) >= 20
    assert missing == []
