"""What the README shows of measured numbers is computed from them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import front_page
from benchmarks.front_page import (
    ADVICE,
    BEGIN,
    END_DEMO,
    END_WHEN,
    README,
    TUTORIAL,
    demonstration,
    picture,
    size,
    when,
)
from benchmarks.results_page import DOCS, Page

PAGE = Page(DOCS / "results")
DEMO = json.loads((DOCS / "results" / "demo.json").read_text(encoding="utf-8"))


def part(page: Path, end: str) -> str:
    """What a page has between two marks."""
    return page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(end)[0].strip()


def test_the_readme_and_the_tutorial_show_what_was_measured() -> None:
    assert part(README, END_WHEN) == when(PAGE), "make results-page"
    assert part(TUTORIAL, END_DEMO) == demonstration(DEMO), "make results-page"
    assert front_page.PICTURE.read_text(encoding="utf-8") == picture(DEMO), "make results-page"


def test_the_method_to_take_is_best_within_the_spreads() -> None:
    for advice in ADVICE:
        rows = {row.method: row for row in PAGE.worth(advice.scenario)}
        best = max(rows.values(), key=lambda row: row.accuracy)
        taken = rows[advice.method]
        assert best.accuracy - taken.accuracy <= best.std + taken.std, advice.federation


def test_the_picture_says_the_bytes_in_words_too() -> None:
    root = ElementTree.fromstring(picture(DEMO))
    texts = [str(each.text) for each in root.iter() if each.tag.endswith("}text")]
    assert texts.count("five clients") == 3
    assert "17.5 kB" in texts
    assert "FedProto: up 17.5 kB, down 51.2 kB" in picture(DEMO)


def test_bytes_have_a_unit() -> None:
    assert [size(count) for count in (0, 999, 17_480, 8.6e6)] == ["0 B", "999 B", "17.5 kB", "8.6 MB"]
