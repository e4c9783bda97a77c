"""Pages that explain link a word of our own to the glossary where they first use it, and the glossary has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, named, prose

GLOSSARY = ROOT / "docs/glossary.md"
OTHERS = {"glossary", "contents", "live-report", "playground", "security", "trust"}
"""Lists, pages around a frame, and the two pages of security, whose words are those of that field."""

EXPLAINING = sorted(
    path
    for folder in ("docs", "docs/tutorials", "docs/users")
    for path in (ROOT / folder).glob("*.md")
    if path.stem not in OTHERS
)
OWN = {
    "diagnostic": "diagnostics?",
    "division": "(?:another|a) division",
    "engine": "engines?",
    "group": "groups? of clients|clients of a group",
    "lane": "lanes?",
    "pool": "(?<!not )(?<!only )(?<!rows of the )pools?(?! training)",
    "reading": "(?<!for )readings?",
    "rule": "rules?(?! (?:for|below|about|itself|of Office))",
    "slot": "slots?",
    "snapshot": "snapshots?",
    "stage": "stages? of the server",
    "staleness": "staleness",
    "study": "study|studies",
    "trial": "trials?",
    "turn": "(?<!in )(?<!take )(?<!colours, )turns?(?! (?:off|on|this|that|an?|it|into) )",
    "variant": "variants?",
}
"""Words of our own, and how they are written; not where they mean something else."""


LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")


def first_uses(text: str) -> dict[str, str]:
    """Of each of our words that some text uses before it links to the glossary, the words around it."""
    plain, missed = LINK.sub(_kept, text), dict[str, str]()
    for word, written in OWN.items():
        found = re.search(rf"(?<![\w/§-])(?:{written})(?![\w/§-])", plain, re.IGNORECASE)
        if found and f"§{word}§" not in plain[: found.start()]:
            missed[word] = plain[max(0, found.start() - 40) : found.end() + 20]
    return missed


def _kept(link: re.Match[str]) -> str:
    """Of a link to a word of the glossary that word between marks, of another one what it says."""
    found = re.search(r"glossary\.md#([\w-]+)$", link[2])
    return f"§{found[1]}§" if found else link[1]


@pytest.mark.parametrize("page", EXPLAINING, ids=named)
def test_a_word_of_ours_is_linked_where_it_is_first_used(page: Path) -> None:
    assert first_uses(prose(page)) == {}


def test_a_word_that_is_not_linked_is_found() -> None:
    assert {*first_uses("Its turn comes, then a [turn](glossary.md#turn) in a lane.")} == {"turn", "lane"}
    assert first_uses("A client's [turn](../glossary.md#turn), and another turn; it turns off, each in turn.") == {}


def test_the_glossary_has_every_word_and_is_in_order() -> None:
    names = re.findall(r'^\| (?:<a id="[\w-]+"></a>)+\*\*(.*?)\*\*', GLOSSARY.read_text(encoding="utf-8"), re.M)
    assert {*OWN} <= {*names}
    assert names == sorted(names, key=str.lower)
