"""Prototypes in motion in a real browser: in a report, and as a page of their own.  make test-browser"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protofed.report.html import gather, write_report
from tests.support.chromium import (
    Chrome,
    attributes,
    barriers,
    click,
    count,
    errors,
    focused,
    hover,
    opened,
    phone,
    press,
    requests,
    select,
    shown,
    smallest_text,
    texts,
    tip,
    too_wide,
    until,
)
from tests.support.command_line import TINY, succeed

pytestmark = pytest.mark.browser

ROUNDS = 12
EVIL = "<img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods whose runs have kept twelve rounds."""
    place = tmp_path_factory.mktemp("motion")
    words = ("--method", "fedproto,fedavg", "--seeds", "1", "--jobs", "1", "--out", "both", "--quiet")
    succeed(place, "compare", *TINY[2:-1], str(ROUNDS), *words)
    succeed(place, "animate", "both", "--out", "moving.html")
    return place / "both"


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with opened() as found:
        yield found


@pytest.fixture(params=["report", "animate"])
def browser(chrome: Chrome, study: Path, request: pytest.FixtureRequest) -> Chrome:
    """The report, and the page that `animate` writes."""
    at = study / "report.html" if request.param == "report" else study.parent / "moving.html"
    chrome.get("about:blank")
    chrome.get(at.as_uri())
    return chrome


def motion(browser: Chrome) -> dict[str, Any]:
    found = json.loads(browser.execute_script("return document.getElementById('data').textContent"))["motion"]
    return dict(found)


def at_round(browser: Chrome) -> int:
    return int(browser.find_element("css selector", "#motion .figure").get_attribute("data-round"))


def dimmed(browser: Chrome) -> list[bool]:
    """Of the first plane's dots."""
    half = count(browser, "#motion circle.sample") // 2
    return [float(value) < 1 for value in attributes(browser, "#motion circle.sample", "opacity")[:half]]


def test_it_is_drawn_and_fetches_nothing(browser: Chrome) -> None:
    told = motion(browser)
    assert count(browser, "#motion circle.sample") == 2 * len(told["samples"][0]["points"])
    assert errors(browser) == []
    assert all(address.startswith(("file:", "about:")) for address in requests(browser))
    assert barriers(browser) == []
    with phone(browser):
        browser.refresh()
        assert (too_wide(browser), smallest_text(browser) >= 10) == (0, True)


def test_it_plays_and_says_how_many_are_right(browser: Chrome) -> None:
    from selenium.webdriver import Keys

    told = motion(browser)
    run = next(iter(told["runs"].values()))
    assert at_round(browser) == ROUNDS
    press(browser, "#motion-slider", Keys.ARROW_LEFT)
    assert (at_round(browser), focused(browser)) == (ROUNDS - 1, "motion-slider")
    answered = zip(run["answers"][ROUNDS - 2], told["samples"][0]["points"], strict=True)
    right = sum(answer == point[0] for answer, point in answered)
    samples = len(told["samples"][0]["points"])
    said = browser.find_element("css selector", "#motion figcaption").text
    assert f"round {ROUNDS - 1}: {right} of {samples} right" in said
    solid = attributes(browser, "#motion circle.sample", "fill")[:samples]
    assert samples - solid.count("transparent") == right
    press(browser, "#motion-play", Keys.SPACE)
    until(browser, lambda: at_round(browser) == ROUNDS)
    until(browser, lambda: "play" in browser.find_element("id", "motion-play").text)


def test_a_redraw_neither_stops_it_nor_forgets_what_is_chosen(browser: Chrome) -> None:
    chosen = {"motion-left": "fedavg", "motion-right": "", "motion-by": "client", "motion-client": "1"}
    chosen |= {"motion-class": "2", "motion-trails": "clients"}
    for name, value in chosen.items():
        select(browser, name, value)
        assert focused(browser) == name
    click(browser, "#motion-play")
    browser.execute_script("window.before = document.querySelector('#motion .figure')")
    browser.set_window_size(1100, 900)  # all is drawn again
    try:
        until(browser, lambda: browser.execute_script("return !window.before.isConnected"))
        assert "pause" in browser.find_element("id", "motion-play").text
        assert focused(browser) == "motion-play"
        assert {name: browser.find_element("id", name).get_attribute("value") for name in chosen} == chosen
        until(browser, lambda: at_round(browser) == ROUNDS)
    finally:
        browser.set_window_size(1200, 900)


def test_a_dot_shows_its_sample_to_the_mouse_and_to_the_keyboard(browser: Chrome) -> None:
    from selenium.webdriver import Keys

    hover(browser, "#motion circle.sample")
    assert "answered" in tip(browser)
    assert count(browser, "#tip svg.thumbnail image") == 1
    press(browser, "#motion figure .steps", Keys.ESCAPE)
    assert tip(browser) == ""
    told = motion(browser)
    samples, run = told["samples"][0], next(iter(told["runs"].values()))
    for n, key in ((0, Keys.ARROW_RIGHT), (1, Keys.ARROW_RIGHT), (0, Keys.HOME)):
        press(browser, "#motion figure .steps", key)
        cls, client, _ = samples["points"][n]
        answer = samples["classes"][run["answers"][-1][n]]
        assert f"{samples['classes'][cls]}, answered {answer}; client {client}" in tip(browser)
    press(browser, "#motion figure .steps", Keys.END)
    assert "prototype of" in tip(browser)


def test_a_class_and_a_client_are_looked_at_alone(browser: Chrome) -> None:
    points = motion(browser)["samples"][0]["points"]
    assert not any(dimmed(browser))
    select(browser, "motion-class", "3")
    assert dimmed(browser) == [point[0] != 3 for point in points]
    select(browser, "motion-class", "")
    select(browser, "motion-client", "1")
    assert dimmed(browser) == [point[1] != 1 for point in points]


def test_colours_and_trails(browser: Chrome) -> None:
    told = motion(browser)
    for column, by in enumerate(("class", "client")):
        select(browser, "motion-by", by)
        inks = set(attributes(browser, "#motion circle.sample", "stroke"))
        assert len(inks) == len({point[column] for point in told["samples"][0]["points"]})
    drawn = {}
    for whose in ("server", "clients", ""):
        select(browser, "motion-trails", whose)
        drawn[whose] = attributes(browser, "#motion figure:first-child polyline", "visibility").count("visible")
    marks = next(iter(told["runs"].values()))["marks"][-1]
    assert drawn == {
        "server": sum(mark[0] > 0 for mark in marks),
        "clients": sum(mark[0] == 0 for mark in marks),
        "": 0,
    }
    select(browser, "motion-trails", "server")
    (path, *_) = [one for one in attributes(browser, "#motion figure:first-child polyline", "points") if one]
    assert len(path.split()) == 10  # where it is, and the nine rounds up to now


def test_the_cursor_of_the_curve_is_moved(browser: Chrome) -> None:
    from selenium.webdriver import ActionChains

    curve = shown(browser, "#motion .course svg")
    (before,) = attributes(browser, "#motion .cursor", "x1")
    ActionChains(browser).move_to_element(curve).click_and_hold().move_by_offset(20, 0).release().perform()
    assert 1 < at_round(browser) < ROUNDS
    (after,) = attributes(browser, "#motion .cursor", "x1")
    assert float(after) < float(before)
    assert float(attributes(browser, "#motion circle.bead", "cx")[0]) <= float(after)


@pytest.mark.parametrize("pictures", [True, False])
def test_a_row_is_told_as_text(chrome: Chrome, study: Path, tmp_path: Path, pictures: bool) -> None:
    found = gather([study])
    samples = found["motion"]["samples"][0]
    samples["rows"] = [f"{EVIL}, row {n}" for n in range(len(samples["points"]))]
    if not pictures:
        samples["pictures"] = None
    write_report(found, tmp_path / "rows.html")
    chrome.get((tmp_path / "rows.html").as_uri())
    hover(chrome, "#motion circle.sample")
    assert f"{EVIL}, row 0" in tip(chrome)
    assert count(chrome, "#tip svg.thumbnail") == pictures
    assert chrome.execute_script("return window.hacked") is None
    assert errors(chrome) == []


def test_one_run_alone(chrome: Chrome, study: Path, tmp_path: Path) -> None:
    succeed(tmp_path, "animate", str(study / "fedavg-seed0"), "--out", "one.html")
    chrome.get((tmp_path / "one.html").as_uri())
    assert texts(chrome, "#motion figcaption b") == ["fedavg"]
    assert errors(chrome) == []
