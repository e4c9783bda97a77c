"""The site in a real browser: every page, light and dark, on a phone, with keys alone; it asks nothing of others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_site import QUESTIONS
from tests.support.chromium import (
    Chrome,
    barriers,
    count,
    dark,
    errors,
    opened,
    phone,
    requests,
    texts,
    too_wide,
    until,
)
from tests.support.command_line import TINY, succeed
from tests.support.pages import ROOT
from tests.support.site import built, served

pytestmark = pytest.mark.browser

KINDS = (
    *("index", "404", "glossary", "live-report", "playground", "security", "api/method", "commands/running"),
    *("methods/index", "methods/fedproto", "results/costs", "results/learned", "tutorials/hospitals"),
    "project/CHANGELOG",
)
"""A page of each kind, which are looked at in the dark and on a phone."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, with the report of a small run."""
    folder = tmp_path_factory.mktemp("site")
    succeed(folder, "run", *TINY, "--out", "run", "--quiet")
    succeed(folder, "report", "run")
    return built(folder, folder / "run/report.html")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with served(site) as found:
        yield found


@pytest.fixture(scope="module", params=["light", "dark"])
def window(request: pytest.FixtureRequest) -> Iterator[tuple[Chrome, str]]:
    """A window of who prefers light or dark pages, and which."""
    with opened() as chrome:
        dark(chrome, request.param)
        yield chrome, request.param


@pytest.fixture
def browser(window: tuple[Chrome, str]) -> Chrome:
    """The window alone, with nothing in it."""
    window[0].get("about:blank")
    return window[0]


def reached(browser: Chrome, goal: str) -> bool:
    """Whether a page is shown, at any of its places."""
    return str(browser.current_url).split("#", maxsplit=1)[0] == goal


def scheme(browser: Chrome) -> str:
    """The colours of the page."""
    return str(browser.execute_script("return document.body.getAttribute('data-md-color-scheme')"))


def test_every_page_can_be_read(site: Path, address: str, window: tuple[Chrome, str]) -> None:
    """Nothing in the console, nothing asked of another host, and nothing serious that axe-core finds."""
    browser, preferred = window
    every = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.parts[-2] != "live")
    assert len(every) > 100
    assert {f"{kind}.html" for kind in KINDS} <= {*every}
    found: dict[str, Any] = {}
    for name in every if preferred == "light" else [f"{kind}.html" for kind in KINDS]:
        errors(browser), requests(browser)
        browser.get(address + name)
        assert scheme(browser) == {"light": "default", "dark": "slate"}[preferred], name
        foreign = {each for each in requests(browser) if not each.startswith((address, "chrome", "about:"))}
        if wrong := [*errors(browser), *foreign, *barriers(browser)]:
            found[name] = wrong
    assert found == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_phone_shows_it_without_scrolling_sideways(kind: str, address: str, browser: Chrome) -> None:
    with phone(browser):
        browser.get(f"{address}{kind}.html")
        assert too_wide(browser) == 0
        assert count(browser, "label[for=__drawer]") > 0


def test_keys_skip_to_the_text_and_change_the_colours(address: str, browser: Chrome) -> None:
    from selenium.webdriver import Keys

    browser.get(f"{address}contents.html")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("textContent").strip() == "Skip to content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.current_url.endswith("contents.html#the-documentation")
    before = scheme(browser)
    browser.get(f"{address}contents.html")
    for _ in range(20):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        if browser.switch_to.active_element.get_attribute("name") == "__palette":
            break
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(browser, lambda: scheme(browser) != before)
    browser.execute_script("localStorage.clear()")


def test_the_search_is_reached_and_used_with_keys(address: str, browser: Chrome) -> None:
    from selenium.webdriver import Keys

    browser.get(f"{address}index.html")
    browser.find_element("tag name", "body").send_keys("/")
    until(browser, lambda: browser.execute_script("return document.activeElement.name") == "query")
    browser.switch_to.active_element.send_keys("staleness")
    until(browser, lambda: count(browser, ".md-search-result__link") > 0)
    assert any("Asynchronous" in title for title in texts(browser, ".md-search-result__link h1"))
    browser.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(browser, lambda: "index.html" not in browser.current_url)
    assert "staleness" in browser.find_element("tag name", "article").text
    assert errors(browser) == []


def test_the_report_on_a_page_is_alive(address: str, browser: Chrome) -> None:
    browser.get(f"{address}live-report.html")
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    until(browser, lambda: count(browser, "select") > 0)
    assert count(browser, "svg") > 0
    browser.switch_to.default_content()
    assert errors(browser) == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_reached_by_clicks(question: str, address: str, browser: Chrome) -> None:
    from tools.site_hooks import PAGES  # here, because it needs the extra docs

    places = [PAGES.get(name, name.removeprefix("docs/")) for name in QUESTIONS[question]]
    browser.get(f"{address}index.html")
    for place in places[1:]:
        goal = place.replace("README.md", "index.md").replace(".md", ".html")
        links = browser.find_elements("css selector", "article a")
        link = next(each for each in links if each.get_attribute("href").split("#")[0] == address + goal)
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].click()", link)
        until(browser, partial(reached, browser, address + goal))
    assert count(browser, "article h1") == 1
    assert (ROOT / QUESTIONS[question][-1]).exists()
