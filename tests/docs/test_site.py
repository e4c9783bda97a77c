"""The site has every page, answers questions within two clicks, has no dead link and asks nothing of another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from tests.support.pages import ROOT
from tests.support.site import built

QUESTIONS = {
    "what is it": ("README.md",),
    "is it for me": ("README.md", "docs/users/researchers.md"),
    "which method": ("README.md", "docs/results/learned.md"),
    "how do I use my data": ("README.md", "docs/tutorials/own-data.md", "docs/data.md"),
    "can I trust it": ("README.md", "docs/users/reviewers.md", "docs/security.md"),
}
"""A visitor's questions, and the pages on the way to the answer."""


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of MkDocs' own."""


Loader.add_multi_constructor("", lambda *_: None)


def pages(entry: Any) -> Iterator[str]:
    """The pages of a navigation."""
    if isinstance(entry, str):
        yield entry
    for each in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from pages(each)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = list(pages(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]))
    assert len({*listed}) == len(listed)
    by_pattern = {path for pattern in ("methods/*",) for path in (ROOT / "docs").glob(pattern) if path.suffix == ".md"}
    there = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    named = {*listed, *(str(path.relative_to(ROOT / "docs")) for path in by_pattern)}
    assert there - named == set()
    assert named - there == {
        "index.md",
        "methods/*",
        "project/*",
    }  # the README, and lists that tools/site_hooks.py fills


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_two_clicks_away(question: str) -> None:
    path = [ROOT / name for name in QUESTIONS[question]]
    assert len(path) <= 3
    for page, goal in pairwise(path):
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        assert goal in [(page.parent / link).resolve() for link in links], goal


class Links(HTMLParser):
    """What a page of the site links to, asks for, and can be reached by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.goals: list[str] = []
        self.asked: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one element."""
        found = dict(attrs)
        self.names |= {str(found[key]) for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.goals.append(str(found["href"]))
        elif (tag == "link" and found.get("rel") != "canonical") or "src" in found:
            self.asked += [str(found[key]) for key in ("href", "src") if found.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make site` builds it, with small pages for the report and the playground."""
    return built(tmp_path_factory.mktemp("site"))


@pytest.mark.slow
def test_no_link_of_the_site_is_dead_and_nothing_is_asked_of_another_host(site: Path) -> None:
    read = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(read) > 100
    dead, foreign = [], []
    for page, found in read.items():
        foreign += [f"{page.name}: {each}" for each in found.asked if re.match(r"(https?:)?//", each)]
        for goal in [*found.goals, *found.asked]:
            path, _, name = unquote(goal).partition("#")
            if re.match(r"[a-z]+:", path) or page.name == "404.html":
                continue
            there = (page.parent / path).resolve() if path else page
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (name and there in read and name not in read[there].names):
                dead.append(f"{page.relative_to(site)}: {goal}")
    assert (dead, foreign) == ([], [])


@pytest.mark.slow
def test_lists_are_lists_on_the_site_too(site: Path) -> None:
    """MkDocs wants an empty line before a list, where GitHub does not."""
    for page in site.rglob("*.html"):
        paragraphs = re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        lists = [text for text in paragraphs if re.search(r"^(- |\d+\. |\| )", text, flags=re.MULTILINE)]
        assert lists == [], page


@pytest.mark.slow
def test_formulas_are_drawn_without_a_script(site: Path) -> None:
    text = (site / "methods" / "fedproto.html").read_text(encoding="utf-8")
    assert text.count("<math") > 3
    assert not [path for path in site.rglob("*.html") if "arithmatex" in path.read_text(encoding="utf-8")]
