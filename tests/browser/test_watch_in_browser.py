"""`protofed watch --serve` in a real browser, while a run goes on.  make test-browser"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.chromium import errors, opened, requests
from tests.support.command_line import TINY, start

pytestmark = pytest.mark.browser


def test_the_page_follows_a_run_to_its_end(tmp_path: Path) -> None:
    words = [*TINY[:-1], "30", "--out", "<i>run", "--quiet"]  # 30 rounds
    run = start(tmp_path, "run", *words)
    while not (tmp_path / "<i>run" / "rounds.jsonl").exists():
        assert run.poll() is None
        time.sleep(0.1)
    watch = start(tmp_path, "watch", "<i>run", "--serve")
    try:
        assert watch.stdout is not None
        address = watch.stdout.readline().strip()
        with opened() as browser:
            browser.get(address)
            end = time.monotonic() + 120
            while browser.find_element("id", "note").text != "ended":
                assert time.monotonic() < end
                time.sleep(0.5)
            assert "30/30" in browser.find_element("id", "runs").text
            assert "<i>run" in browser.find_element("id", "runs").text
            assert len(browser.find_elements("css selector", "#runs polyline")) == 2
            assert errors(browser) == []
            assert all(asked.startswith(address) for asked in requests(browser))
    finally:
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 0
        assert run.wait(120) == 0
