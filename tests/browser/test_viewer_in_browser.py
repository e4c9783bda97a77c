"""The viewer in a real browser, while runs go on: `protofed ui` and `protofed watch --serve`.  make test-browser"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from protofed.experiment import Experiment
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from tests.support.chromium import Chrome, barriers, dark, errors, opened, phone, requests, smallest_text, too_wide
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


def until(browser: Chrome, holds: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, browser.find_element("tag name", "body").text
        time.sleep(0.1)


def count(browser: Chrome, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def texts(browser: Chrome, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.execute_script(script, selector))


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
        browser.find_element("id", "runs-words").send_keys("both")
        browser.find_element("id", "runs-all").click()
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
        browser.find_element("id", "runs-none").click()
        until(browser, lambda: count(browser, "section:not([hidden])") == 1)
        assert browser.execute_script("return window.hacked") is None
        assert errors(browser) == []
        assert all(asked.startswith(address) for asked in requests(browser))


def test_what_is_damaged_is_told_and_the_rest_goes_on(folder: Path) -> None:
    with serving(folder, "ui", ".") as address, opened() as browser:
        browser.get(address)
        until(browser, lambda: count(browser, "#runs tbody tr") == 7)
        browser.execute_script("document.querySelector('[aria-label=\"compare damaged\"]').click()")
        until(browser, lambda: "config.yaml" in note(browser))
        browser.find_element("id", "runs-none").click()
        browser.execute_script("document.querySelector('[aria-label=\"compare lost\"]').click()")
        until(browser, lambda: count(browser, "#loss path.curve") == 1)
        until(browser, lambda: "config.yaml" not in note(browser))


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
