"""Every page is short, its lines are short, and what wraps the generated ones changes nothing that is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.markdown import LENGTH, WIDTH, wrapped

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"), *ROOT.glob("docs/**/*.md")])


def too_long(line: str) -> bool:
    """Whether a line could be shorter: no row of a table, and no single word, such as a link."""
    return len(line) > WIDTH and not line.startswith("|") and len(line.split()) > 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LENGTH


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_lines_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    lines = re.sub(r"<!-- begin.*?<!-- end", "", text, flags=re.DOTALL).splitlines()  # measured, written by a command
    assert [f"{number}: {line}" for number, line in enumerate(lines, 1) if too_long(line)] == []


LONG = "word " * 40


@pytest.mark.parametrize(
    ("text", "first"),
    [
        (LONG, "word " * 23 + "word"),
        ("- " + LONG, "- " + ("word " * 23).strip()),
        ("12. " + LONG, "12. " + "word " * 22 + "word"),
        ("| " + LONG, ("| " + LONG).strip()),
        ("# " + LONG, ("# " + LONG).strip()),
        ("```python\n" + LONG + "\n```", "```python"),
        ("```sh\nprotofed run " + "--rounds 10 " * 20 + "\n```", "```sh"),
    ],
)
def test_what_is_wrapped_reads_the_same(text: str, first: str) -> None:
    lines = wrapped(text).splitlines()
    assert lines[0] == first
    assert " ".join(wrapped(text).replace("\\\n", " ").split()) == " ".join(text.split())
    assert wrapped(wrapped(text)) == wrapped(text)


def test_items_and_paragraphs_stay_apart() -> None:
    text = "one\ntwo\n- item\n  of it\n- another\n\n> quoted\n"
    assert wrapped(text) == "one two\n\n- item of it\n- another\n\n> quoted\n"


def test_no_line_begins_with_what_would_be_markup() -> None:
    text = "word " * 23 + "word - 12. # | > * + word"
    assert not [line for line in wrapped(text).splitlines() if re.match(r"[-#|>*+\d]", line)]


def test_a_command_is_continued_before_a_flag() -> None:
    lines = wrapped("```sh\nprotofed run " + "--out 'a b' " * 20 + "   # why\n```\n").splitlines()
    assert all(line.endswith(" \\") for line in lines[1:-2])
    assert all(line.startswith("  --out") for line in lines[2:-1])
    assert lines[-2].endswith("# why")
