"""Debian's Chromium, driven by Selenium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Chrome = Any  # Selenium types only a part of it


@contextmanager
def opened() -> Iterator[Chrome]:
    """A window of a desk's size; closed at the end."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", "--no-proxy-server"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy"):
            patch.delenv(name, raising=False)  # that of the tests leads nowhere; the driver is here
        chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield chrome
    finally:
        chrome.quit()


def errors(browser: Chrome) -> list[dict[str, Any]]:
    """What the console complains of."""
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def requests(browser: Chrome) -> set[str]:
    """The addresses that were asked for something."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    return {address for address in asked if not address.startswith("data:")}
