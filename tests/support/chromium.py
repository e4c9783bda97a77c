"""Debian's Chromium, driven by Selenium."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
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
    chrome.set_script_timeout(300)  # axe-core looks at every mark
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
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextmanager
def printed(browser: Chrome) -> Iterator[None]:
    """As it is on paper."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def count(browser: Chrome, selector: str) -> int:
    """How many elements there are."""
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def texts(browser: Chrome, selector: str) -> list[str]:
    """What elements say, whether they are seen or not."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.execute_script(script, selector))


def attributes(browser: Chrome, selector: str, name: str) -> list[str]:
    """An attribute of each of some elements."""
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.getAttribute(arguments[1]))"
    return list(browser.execute_script(script, selector, name))


def tip(browser: Chrome) -> str:
    """What is said of what is pointed at; empty if nothing is."""
    return str(browser.find_element("id", "tip").text)


def focused(browser: Chrome) -> str:
    """The id of what the keyboard is at, or its tag."""
    return str(browser.execute_script("return document.activeElement.id || document.activeElement.tagName"))


def press(browser: Chrome, selector: str, *keys: str) -> None:
    """Keys, at an element."""
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    _settle(browser)
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def shown(browser: Chrome, selector: str) -> Any:
    """The first such element, in the middle of the window."""
    node = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
    _settle(browser)
    return node


def _settle(browser: Chrome) -> None:
    """Wait until the page has scrolled, and has heard of it."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def hover(browser: Chrome, selector: str) -> None:
    """Point at the middle of an element."""
    from selenium.webdriver import ActionChains

    ActionChains(browser).move_to_element(shown(browser, selector)).perform()


def tap(browser: Chrome, selector: str) -> None:
    """A finger, in the middle of an element."""
    middle = """const box = arguments[0].getBoundingClientRect();
        return {x: box.left + box.width / 2, y: box.top + box.height / 2}"""
    at = browser.execute_script(middle, shown(browser, selector))
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [at]})
    browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def click(browser: Chrome, selector: str, shift: bool = False) -> None:
    """A click on an element, with the Shift key or without."""
    from selenium.webdriver import ActionChains, Keys

    node, chain = shown(browser, selector), ActionChains(browser)
    (chain.key_down(Keys.SHIFT).click(node).key_up(Keys.SHIFT) if shift else chain.click(node)).perform()


def select(browser: Chrome, name: str, value: str) -> None:
    """An entry of a list by its value."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", name)).select_by_value(value)


def until(browser: Chrome, holds: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something that a page does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, browser.find_element("tag name", "body").text
        time.sleep(0.05)


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
