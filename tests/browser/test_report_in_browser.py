"""The report in a real browser: Debian's Chromium, driven by Selenium.  make test-browser"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chromium import Chrome, errors, opened, requests
from tests.support.command_line import succeed

pytestmark = pytest.mark.browser

SECTIONS = ("summary", "curves", "holds", "clients", "confusion", "plane", "prototypes", "costs")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison on domains, in a folder whose name would be markup."""
    place = tmp_path_factory.mktemp("browser")
    words = ["--dataset", "digit-domains", "--split", "domains", "--clients", "4", "--train-size", "300"]
    words += ["--method", "mp-fedcl,fedplcc,fedavg", "--rounds", "4", "--seeds", "2", "--device", "cpu"]
    words += ["--set", "lambda1=1"]
    succeed(place, "compare", *words, "--out", "<b>all", "--quiet")
    return place / "<b>all" / "report.html"


@pytest.fixture(scope="module", params=["light", "dark"])
def browser(page: Path, request: pytest.FixtureRequest) -> Iterator[Chrome]:
    """The page, open in a window of a desk's size."""
    with opened() as chrome:
        feature = [{"name": "prefers-color-scheme", "value": request.param}]
        chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
        chrome.get(page.as_uri())
        yield chrome


def count(browser: Chrome, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def data(browser: Chrome) -> dict[str, Any]:
    return dict(json.loads(browser.execute_script("return document.getElementById('data').textContent")))


def test_nothing_is_wrong_and_nothing_is_fetched(browser: Chrome, page: Path) -> None:
    assert errors(browser) == []
    assert requests(browser) <= {page.as_uri()}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_figure_is_there(section: str, browser: Chrome) -> None:
    assert count(browser, f"#{section}[data-drawn=yes]") == 1


def test_figures_show_their_data(browser: Chrome) -> None:
    told = data(browser)
    lines, first = len(told["lines"]), next(iter(told["looks"].values()))
    assert count(browser, "#curves path.curve") == lines
    assert count(browser, "#holds rect.cell") == 4 * 10
    assert count(browser, "#clients circle.dot") == 4 * lines
    assert count(browser, "#confusion rect.cell") == 100
    assert count(browser, "#plane circle.point") == len(first["points"]) > 100
    assert count(browser, "#plane .mark") >= len(first["marks"])
    assert count(browser, "#table tbody tr") == lines
    assert count(browser, "#prototypes path.curve") >= 3
    assert count(browser, "#costs rect.bar") >= 2 * lines


def colours(browser: Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('#plane circle.point')].map((one) => one.getAttribute('stroke'))"
    return list(browser.execute_script(script))


def test_a_click_changes_the_colours(browser: Chrome) -> None:
    told = next(iter(data(browser)["looks"].values()))
    seen = {}
    for place, by in ((5, "domain"), (4, "client"), (2, "class")):
        browser.find_element("css selector", f"#plane button[data-by={by}]").click()
        seen[by] = colours(browser)
        assert len(set(seen[by])) == len({point[place] for point in told["points"]})
    assert seen["class"] != seen["domain"]


def test_pointing_at_a_mark_says_what_it_is(browser: Chrome) -> None:
    from selenium.webdriver import ActionChains

    mark = browser.find_element("css selector", "#plane svg .mark")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(browser).move_to_element(mark).perform()
    assert "prototype of class" in browser.find_element("id", "tip").text


def test_choices_redraw(browser: Chrome) -> None:
    from selenium.webdriver.support.ui import Select

    before = browser.find_element("css selector", "#curves path.curve").get_attribute("d")
    Select(browser.find_element("id", "over")).select_by_value("bytes")
    assert browser.find_element("css selector", "#curves path.curve").get_attribute("d") != before
    scores = Select(browser.find_element("id", "score"))
    for name in ("own/own/head", "global/all/head"):
        scores.select_by_visible_text(name)
        assert browser.find_element("css selector", "#table th:nth-child(2)").text == name
    scores.select_by_visible_text("global/domain/head")
    assert count(browser, "#clients rect.domain") == 3 * 4
    target = browser.find_element("id", "target")
    target.clear()
    target.send_keys("100")
    cells = [cell.text for cell in browser.find_elements("css selector", "#reached tbody td:nth-child(2)")]
    assert cells == ["not reached"] * 3


def test_a_phone_has_no_sideways_scroll(browser: Chrome) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        widths = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert widths[0] <= widths[1]
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
