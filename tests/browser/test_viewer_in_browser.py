"""The viewer in a real browser, while runs go on: `protofed ui` and `protofed watch --serve`.  make test-browser"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofed.experiment import Experiment
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from tests.support.chromium import (
    Chrome,
    attributes,
    barriers,
    click,
    count,
    dark,
    errors,
    focused,
    opened,
    phone,
    press,
    printed,
    requests,
    select,
    smallest_text,
    tap,
    texts,
    tip,
    too_wide,
    until,
)
from tests.support.command_line import TINY, start, succeed
from tests.support.made_rounds import a_round

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror='window.hacked = 1'>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison, a run that has failed, one that cannot be read, and one that has stopped, whose name is markup."""
    place = tmp_path_factory.mktemp("viewer")
    flags = ("--method", "fedproto,fedavg", "--seeds", "2", "--jobs", "1", "--out", "both", "--quiet")
    succeed(place, "compare", *TINY[2:], *flags)
    experiment = Experiment(method="fedproto", rounds=9, clients=3)
    FailedRun("fedproto", 0, "diverged", f"the loss became {EVIL}", round=3).write(
        begin(place / "lost", experiment).path
    )
    begin(place / f"{EVIL.replace('/', '')}", experiment)
    (begin(place / "damaged", experiment).path / "config.yaml").write_text("rounds: [")
    return place


def begin(path: Path, experiment: Experiment) -> RunFolder:
    run = RunFolder.create(path, experiment)
    for number in (1, 2):
        run.append_round(
            a_round(number, accuracy={"own/own/head": 10.0 * number}, per_client={"own/own/head": [1.0] * 3})
        )
    return run


@contextmanager
def serving(place: Path, *words: str) -> Iterator[str]:
    """The address of a viewer that answers."""
    process = start(place, *words)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def note(browser: Chrome) -> str:
    return str(browser.execute_script("return document.getElementById('note').textContent"))


def test_runs_below_a_folder_are_compared(folder: Path) -> None:
    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        states = " ".join(texts(browser, "#runs [class^=state-]"))
        for state in ("ended", "stopped", "unreadable", "failed: diverged (round 3): the loss became <img"):
            assert state in states
        assert browser.find_elements("css selector", "section:not([hidden])") == [browser.find_element("id", "runs")]
        press(browser, "#runs-words", "both")
        until(browser, lambda: count(browser, "#runs tbody tr") == 4)
        browser.execute_script("document.getElementById('runs-all').click()")
        until(browser, lambda: count(browser, "#plane circle.point") > 10)
        told = json.loads((folder / "both/compare.json").read_text())
        means = dict(
            zip(texts(browser, "#summary tbody th"), texts(browser, "#summary tbody td:nth-child(2)"), strict=True)
        )
        for row in told["rows"]:
            assert means[row["method"]].startswith(f"{row['accuracy']['own/own/head']['mean']:.2f}")
        assert barriers(browser) == []
        dark(browser)
        assert barriers(browser) == []
        with phone(browser):
            browser.refresh()  # what was ticked is in the address
            until(browser, lambda: count(browser, "#plane circle.point") > 10)
            assert too_wide(browser) == 0
            assert smallest_text(browser) >= 10
        ticked = count(browser, "#runs input[type=checkbox]:checked")
        assert ticked == 4
        browser.execute_script("document.querySelector('#runs tbody input:checked').click()")
        until(browser, lambda: count(browser, "#runs input[type=checkbox]:checked") == 3)
        browser.execute_script("document.getElementById('runs-none').click()")
        until(browser, lambda: count(browser, "section:not([hidden])") == 1)
        assert browser.execute_script("return window.hacked") is None
        assert errors(browser) == []
        assert all(asked.startswith(address) for asked in requests(browser))


def test_what_is_damaged_is_told_and_the_rest_goes_on(folder: Path) -> None:
    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        browser.execute_script("document.querySelector('[aria-label=\"compare damaged\"]').click()")
        until(browser, lambda: "config.yaml" in " ".join(texts(browser, "#top .warning")))
        browser.execute_script("document.getElementById('runs-none').click()")
        browser.execute_script("document.querySelector('[aria-label=\"compare lost\"]').click()")
        until(browser, lambda: count(browser, "#loss path.curve") == 1)
        until(browser, lambda: "config.yaml" not in " ".join(texts(browser, "#top .warning")))


def test_the_page_follows_a_run_to_its_end(tmp_path: Path) -> None:
    words = [*TINY[:-1], "30", "--out", "<i>run", "--quiet"]  # 30 rounds
    run = start(tmp_path, "run", *words)
    while not (tmp_path / "<i>run" / "rounds.jsonl").exists():
        assert run.poll() is None
        time.sleep(0.1)
    with serving(tmp_path, "watch", "<i>run", "--serve") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: note(browser).startswith("ended"), 300)
        until(browser, lambda: count(browser, "#curves path.curve") == 1 and count(browser, "#plane circle.point") > 10)
        assert "30/30" in browser.find_element("id", "runs").text
        assert "<i>run" in browser.find_element("id", "top").text
        assert errors(browser) == []
        assert all(asked.startswith(address) for asked in requests(browser))
    assert run.wait(120) == 0


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has kept thirty rounds."""
    place = tmp_path_factory.mktemp("long")
    succeed(place, "run", *TINY[:-1], "30", "--out", "long", "--quiet")
    return place


@pytest.mark.parametrize("words", [("ui", "."), ("watch", "long", "--serve")])
def test_the_motion_goes_on_while_runs_do(long_run: Path, words: tuple[str, ...]) -> None:
    chosen = {"motion-by": "client", "motion-class": "2", "motion-client": "1", "motion-trails": "clients"}
    with serving(long_run, *words) as address, opened() as browser:
        reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]  # which plays slowly
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": reduced})
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 1)
        if words[0] == "ui":
            browser.execute_script("document.getElementById('runs-all').click()")
        until(browser, lambda: count(browser, "#motion circle.sample") > 10 and count(browser, "#plane circle.point"))
        for name, value in chosen.items():
            select(browser, name, value)
        click(browser, "#motion-play")
        browser.execute_script("window.before = document.querySelector('#motion .figure')")
        os.utime(long_run / "long/rounds.jsonl")  # as if a round had been written
        until(browser, lambda: browser.execute_script("return !window.before.isConnected"))
        assert "pause" in texts(browser, "#motion-play")[0]
        assert focused(browser) == "motion-play"
        values = "return arguments[0].map((name) => document.getElementById(name).value)"  # the page may be drawn anew
        assert browser.execute_script(values, [*chosen]) == [*chosen.values()]
        figure = "return Number(document.querySelector('#motion .figure').dataset.round)"
        now = browser.execute_script(figure)
        until(browser, lambda: browser.execute_script(figure) > now)
        assert errors(browser) == []


def test_what_is_held_is_not_taken_away(long_run: Path) -> None:
    from selenium.webdriver import ActionChains

    with serving(long_run, "watch", "long", "--serve") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#motion circle.sample") > 10 and count(browser, "#plane circle.point"))
        slider = browser.find_element("id", "motion-slider")
        browser.execute_script("window.before = [...document.querySelectorAll('#motion .figure, #loss .figure')]")
        there = "return window.before.map((one) => one.isConnected)"
        ActionChains(browser).click_and_hold(slider).perform()
        os.utime(long_run / "long/rounds.jsonl")
        until(browser, lambda: browser.execute_script(there) == [True, False])
        ActionChains(browser).release().perform()
        until(browser, lambda: browser.execute_script(there) == [False, False])


def test_the_keyboard_is_enough(folder: Path) -> None:
    from selenium.webdriver import Keys

    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        press(browser, "#runs-words", "both")
        until(browser, lambda: count(browser, "#runs tbody tr") == 4)
        assert focused(browser) == "runs-words"
        tick = browser.execute_script("return document.querySelector('#runs tbody input').id")
        press(browser, f"#{tick}", Keys.SPACE)
        until(browser, lambda: count(browser, "#plane circle.point") > 10)
        assert focused(browser) == tick
        press(browser, "#curves .steps", Keys.END)
        assert tip(browser).startswith("round 3")
        press(browser, "#motion figure .steps", Keys.ARROW_RIGHT)
        assert "answered" in tip(browser)
        place = [re.sub(r" [▴▾]$", "", text) for text in texts(browser, "#runs thead th")].index("%")
        press(browser, f"#runs-by-{place}", Keys.ENTER)
        assert focused(browser) == f"runs-by-{place}"
        values = [float(text) for text in texts(browser, f"#runs tbody tr > :nth-child({place + 1})")]
        assert values == sorted(values, reverse=True)
        press(browser, "#runs-none", Keys.ENTER)
        until(browser, lambda: count(browser, "section:not([hidden])") == 1)
        assert errors(browser) == []


def test_it_is_printed_and_tapped(folder: Path) -> None:
    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        browser.execute_script("document.querySelector('[aria-label^=\"compare both\"]').click()")
        until(browser, lambda: count(browser, "#plane circle.point") > 10)
        shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
        with printed(browser):
            assert [browser.execute_script(shown, one) for one in ("nav", "#runs .controls")] == ["none", "none"]
            assert (
                browser.execute_script("return getComputedStyle(document.querySelector('.tall')).overflowY")
                == "visible"
            )
        assert len(browser.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000
        with phone(browser):
            tap(browser, "#loss svg")
            until(browser, lambda: tip(browser).startswith("round "))


def test_numbers_are_those_of_the_results(folder: Path) -> None:
    """Accuracy, loss, megabytes and seconds of four runs: sixteen numbers."""
    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        titles = [re.sub(r" [▴▾]$", "", text) for text in texts(browser, "#runs thead th")]
        compared = 0
        for row in range(1, 8):
            shown = dict(zip(titles, texts(browser, f"#runs tbody tr:nth-child({row}) > *"), strict=True))
            if shown["state"] != "ended":
                continue
            result = json.loads((folder / shown["run"] / "result.json").read_text())
            last = json.loads((folder / shown["run"] / "rounds.jsonl").read_text().splitlines()[-1])
            assert shown["%"] == f"{result['accuracy'][result['score']]['last']:.2f}"
            assert shown["loss"] == f"{last['loss']:.3f}"
            assert float(shown["MB"]) == float(f"{(result['bytes_up'] + result['bytes_down']) / 1e6:.3g}")
            assert float(shown["seconds"]) == float(f"{result['seconds']:.3g}")
            compared += 1
        assert compared == 4


def test_a_line_keeps_its_colour_while_it_is_ticked(folder: Path) -> None:
    def tick(run: str, lines: list[str]) -> dict[str, str]:
        browser.execute_script("document.querySelector(arguments[0]).click()", f'[aria-label="compare both/{run}"]')
        names = "#loss .legend button"
        until(browser, lambda: sorted(one.strip() for one in texts(browser, names)) == sorted(lines))
        inks = attributes(browser, f"{names} line", "stroke")
        return {one.strip(): ink for one, ink in zip(texts(browser, names), inks, strict=True)}

    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        first = tick("fedproto-seed0", ["fedproto"])
        both = tick("fedavg-seed0", ["fedavg", "fedproto"])  # which comes before it
        assert both["fedproto"] == first["fedproto"] != both["fedavg"]
        other = tick("fedproto-seed0", ["fedavg"])
        assert other["fedavg"] == both["fedavg"]
        again = tick("fedproto-seed1", ["fedavg", "fedproto"])
        assert again["fedavg"] == both["fedavg"]
        assert len({*again.values()}) == 2
