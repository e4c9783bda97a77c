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


def dark(browser: Chrome, scheme: str = "dark") -> None:
    """As who prefers a dark page sees it, or a light one."""
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})


@contextmanager
def phone(browser: Chrome) -> Iterator[None]:
    """The window of a small phone."""
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def too_wide(browser: Chrome) -> float:
    """How many pixels stick out sideways."""
    widths = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    return float(max(0, widths[0] - widths[1]))


def smallest_text(browser: Chrome) -> float:
    """The height of the smallest letters that are shown, in pixels; of a figure as it is scaled."""
    return float(
        browser.execute_script("""
        const sizes = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
          const at = walker.currentNode.parentElement;
          if (!walker.currentNode.textContent.trim() || !at.getClientRects().length) continue;
          const svg = at.closest("svg"), wide = svg && svg.viewBox.baseVal ? svg.viewBox.baseVal.width : 0;
          const scale = wide ? svg.getBoundingClientRect().width / wide : 1;
          sizes.push(parseFloat(getComputedStyle(at).fontSize) * scale);
        }
        return Math.min(...sizes);
    """)
    )


def barriers(browser: Chrome) -> list[str]:
    """What axe-core finds that keeps people from using the page: its serious and critical violations."""
    from importlib.resources import files

    browser.execute_script(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = browser.execute_async_script("""
        const done = arguments[0];
        axe.run({resultTypes: ["violations"]}).then(done, (error) => done({error: String(error)}));
    """)
    return [
        f"{one['id']}: {[(node['target'], node['failureSummary']) for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
