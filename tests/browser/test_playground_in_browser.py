"""The playground in a real browser: it answers as `predict`, learns a class as `add-class`, and asks nobody."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import protofed
from protofed.data import load
from protofed.report.playground import network_of, read_runtime, write_playground
from protofed.serving.add_class import Effect, add_class, read_held_out
from protofed.serving.predictor import Predictor
from tests.support.chromium import Chrome, barriers, dark, errors, opened, phone, requests, smallest_text, too_wide
from tests.support.command_line import succeed

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror='window.hacked = 1'>"
SEVEN = [(0.25, 0.15), (0.75, 0.15), (0.45, 0.9)]
CROSS = [[(0.2, 0.2), (0.8, 0.8)], [(0.8, 0.2), (0.2, 0.8)]]
EACH = 3
"""Pictures of a class that can be picked."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose clients never saw eights and nines, with training pictures; it becomes a page, too."""
    place = tmp_path_factory.mktemp("playground")
    words = ["--method", "mp-fedcl", "--model", "mlp", "--clients", "3", "--alpha", "1", "--novel", "2", "--quiet"]
    words += ["--episode-ways", "2", "--rounds", "8", "--eval-every", "8", "--device", "cpu", "--out", "run"]
    succeed(place, "run", *words)
    succeed(place, "export", "run", "--examples", "1", "--out", "model")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "https_proxy"):  # npm may fetch its package, unless $PROTOFED_DATA has it
            patch.delenv(name, raising=False)
        read_runtime()
    succeed(place, "playground", "model", "--data", "digits", "--out", "page")
    return place / "model"


@pytest.fixture(scope="module")
def predictor(model: Path) -> Predictor:
    """The same model in Python."""
    return protofed.load(model)


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    """Those that can be picked, in the order of the page."""
    test = load("digits").test
    return test.x[torch.cat([(test.labels == label).nonzero().flatten()[:EACH] for label in range(10)])]


@pytest.fixture(scope="module", params=["light", "dark"])
def window(request: pytest.FixtureRequest) -> Iterator[Chrome]:
    """A window of a desk's size."""
    with opened() as chrome:
        dark(chrome, request.param)
        yield chrome


@pytest.fixture
def address(model: Path) -> str:
    """Of the page, which is a file."""
    return (model.parent / "page" / "index.html").as_uri()


@pytest.fixture
def browser(window: Chrome, address: str) -> Chrome:
    """The page, afresh and ready."""
    window.get("about:blank")
    window.get(address)
    ready(window)
    return window


def ready(browser: Chrome) -> None:
    until(lambda: text(browser, "#note") == "" and text(browser, "#said") != "")


def until(holds: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def text(browser: Chrome, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).textContent", selector))


def texts(browser: Chrome, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(browser.execute_script(script, selector))


def count(browser: Chrome, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def answer(browser: Chrome) -> str:
    return text(browser, "#said .class")


def seen(browser: Chrome) -> list[float]:
    """Of the picture that the network sees, the pixels."""
    return list(
        browser.execute_script("""
        const node = document.querySelector("#seen canvas");
        if (!node) return [];
        const { data } = node.getContext("2d").getImageData(0, 0, node.width, node.height);
        return [...data].filter((_, n) => n % 4 === 0);
    """)
    )


def press(browser: Chrome, selector: str, *keys: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).focus()", selector)
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def pick(browser: Chrome, pictures: Tensor, row: int) -> None:
    """Pick a picture, and wait for its answer."""
    browser.execute_script("document.querySelectorAll('#picks button')[arguments[0]].click()", row)
    until(lambda: seen(browser) == pictures[row].flatten().tolist())


def draw(browser: Chrome, strokes: Sequence[Sequence[tuple[float, float]]]) -> None:
    """Draw with the mouse, and wait for an answer."""
    from selenium.webdriver import ActionChains

    board = browser.find_element("id", "board")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", board)
    side = board.rect["width"]
    chain = ActionChains(browser, duration=5)
    for stroke in strokes:
        (first, *others) = [(round((x - 0.5) * side), round((y - 0.5) * side)) for x, y in stroke]
        chain.move_to_element_with_offset(board, *first).click_and_hold()
        for point in others:
            chain.move_to_element_with_offset(board, *point)
        chain.release()
    chain.perform()
    until(lambda: answer(browser) != "…")


def keep(browser: Chrome, times: int) -> None:
    """Keep what is on the board, and wait until so many are kept."""
    browser.execute_script("document.getElementById('keep').click()")
    until(lambda: count(browser, "#kept button") == times)


def name_it(browser: Chrome, name: str) -> None:
    browser.find_element("id", "name").send_keys(name)
    browser.execute_script("document.getElementById('add').click()")


def refuse(browser: Chrome, percent: int) -> None:
    """Move the slider to where so many percent of the known are refused."""
    script = "arguments[0].value = 100 - arguments[1]; arguments[0].dispatchEvent(new Event('input'))"
    browser.execute_script(script, browser.find_element("id", "refusal"), percent)


def shown(browser: Chrome) -> dict[str, Any]:
    """What the page says of the picture on the board."""
    row = "#nearest tbody tr:first-child"
    tip = browser.find_element("css selector", row).get_attribute("data-tip")
    like = text(browser, "#alike p")
    number, owner = re.fullmatch(r"prototype (\d+) of (.*)", tip).groups()  # type: ignore[union-attr]
    example = re.search(r": (\w+) of client (\d+)", like)
    assert example is not None
    return {
        "class": answer(browser),
        "nearest": text(browser, f"{row} th"),
        "client": None if owner == "several clients" else int(owner.removeprefix("client ")),
        "cluster": int(number),
        "distance": nearest_distance(browser),
        "example": (example[1], int(example[2])),
    }


def nearest_distance(browser: Chrome) -> float:
    return float(browser.find_element("css selector", "#nearest data").get_attribute("value"))


def agrees(value: float, expected: float) -> bool:
    """To four digits."""
    return math.isclose(value, expected, rel_tol=1e-4)


def test_answers_are_those_of_predict(browser: Chrome, model: Path, pictures: Tensor, tmp_path: Path) -> None:
    rows = range(0, 10 * EACH, EACH)
    np.savez(tmp_path / "ten.npz", images=pictures[list(rows)].numpy())
    for percent in (5, 40):
        refuse(browser, percent)
        words = ("predict", str(model), "ten.npz", "--reject", str(percent / 100), "--json")
        told = json.loads(succeed(tmp_path, *words).out)["predictions"]
        for row, expected in zip(rows, told, strict=True):
            pick(browser, pictures, row)
            found = shown(browser)
            assert found["class"] == ("I do not know" if expected["refused"] else expected["class"])
            assert found["nearest"] == expected["top"][0]["class"]
            assert (found["client"], found["cluster"]) == (expected["client"], expected["cluster"])
            assert agrees(found["distance"], expected["distance"])
            assert found["example"] == (expected["example"]["class"], expected["example"]["client"])
    assert len({one["refused"] for one in told}) == 2


def test_every_prototype_is_shown_with_its_owner(browser: Chrome, predictor: Predictor, pictures: Tensor) -> None:
    pick(browser, pictures, 0)
    flat = predictor.pool.flat()
    features = predictor.outputs(pictures[:1])[0]
    far = (flat["vectors"] - features).norm(dim=-1)
    assert count(browser, "#strip circle") == len(far) > 20
    assert set(texts(browser, "#strip .legend li")) == {f"client {owner}" for owner in flat["clients"].tolist()}
    values = browser.execute_script("return [...document.querySelectorAll('#nearest data')].map((one) => one.value)")
    expected = far.sort().values[: len(values)].tolist()
    assert all(agrees(float(one), two) for one, two in zip(values, expected, strict=True))
    assert count(browser, "#nearest canvas") == len(values)  # a training picture beside each


def test_drawing_with_a_mouse_gives_an_answer(browser: Chrome) -> None:
    assert (answer(browser), count(browser, "#nearest table")) == ("…", 0)
    refuse(browser, 0)
    draw(browser, [SEVEN])
    assert text(browser, "#nearest th[scope=row]") == "7"
    inked = np.array(seen(browser)).reshape(8, 8)
    assert (inked.max(1) > 100).all()  # as high as the picture, like every digit of the data
    before = inked.sum()
    draw(browser, [[(0.3, 0.5), (0.7, 0.5)]])
    until(lambda: sum(seen(browser)) > before)
    browser.find_element("id", "undo").click()
    until(lambda: sum(seen(browser)) == before)
    browser.find_element("id", "clear").click()
    until(lambda: answer(browser) == "…")


def test_a_small_drawing_in_a_corner_is_seen_like_a_large_one(browser: Chrome) -> None:
    draw(browser, [SEVEN])
    large = np.array(seen(browser))
    browser.find_element("id", "clear").click()
    draw(browser, [[(x * 0.4, y * 0.4) for x, y in SEVEN]])
    until(lambda: len(seen(browser)) and abs(np.array(seen(browser)) - large).mean() < 10)


def test_the_slider_refuses(browser: Chrome, predictor: Predictor, pictures: Tensor) -> None:
    from selenium.webdriver import Keys

    pick(browser, pictures, 0)
    table = predictor.card.refusal["nearest"]

    def says(percent: int) -> None:
        known, unknown = (f"{100 * table[name][percent]:.0f} %" for name in ("known", "unknown"))
        words = f"{table['threshold'][percent]:.3f}: {known} of test pictures of known classes and {unknown} of others"
        assert text(browser, "#refused") == words

    says(5)  # where it begins
    press(browser, "#refusal", Keys.ARROW_LEFT)
    says(6)
    press(browser, "#refusal", Keys.HOME)
    assert answer(browser) == "I do not know"
    says(100)
    press(browser, "#refusal", Keys.END)
    assert answer(browser) == "0"


def test_five_drawings_are_a_class_that_then_wins(browser: Chrome) -> None:
    button = browser.find_element("id", "add")
    for number in range(5):
        assert not button.is_enabled()
        nudge = 0.02 * number
        draw(browser, [[(x + nudge if x < 0.5 else x, y) for x, y in stroke] for stroke in CROSS])
        keep(browser, number + 1)
    assert browser.switch_to.active_element.get_attribute("id") == "name"
    assert not button.is_enabled()
    browser.switch_to.active_element.send_keys("7")
    assert (text(browser, "#why"), button.is_enabled()) == ("there is a class of this name", False)
    browser.find_element("id", "name").clear()
    name_it(browser, EVIL)
    assert texts(browser, "#added b") == [EVIL]
    draw(browser, CROSS)
    assert answer(browser) == EVIL
    assert text(browser, "#nearest td.says") == "your drawings"
    browser.find_element("css selector", "#added button").click()
    until(lambda: answer(browser) != EVIL)
    assert count(browser, "#added li") == 0
    assert browser.execute_script("return window.hacked") is None
    assert errors(browser) == []


def test_a_class_is_added_as_add_class_does(
    browser: Chrome, model: Path, predictor: Predictor, pictures: Tensor
) -> None:
    """Two of them, one after the other; the first is then removed."""
    held_out = read_held_out(model, predictor.card.feature_size)
    changed = predictor
    drawings = {"eight": [24, 25, 26, 0, 3], "nine": [27, 28, 29, 1, 4]}
    for name, rows in drawings.items():
        for times, row in enumerate(rows, 1):
            pick(browser, pictures, row)
            keep(browser, times)
        name_it(browser, name)
        changed, effect = add_class(changed, name, pictures[rows], held_out)
        assert told_effect(browser) == pytest.approx(list(told_of(effect)), abs=0.051)
    same_as(browser, changed, pictures)
    browser.find_element("css selector", "#added li:first-child button").click()
    alone, effect = add_class(predictor, "nine", pictures[drawings["nine"]], held_out)
    assert told_effect(browser) == pytest.approx(list(told_of(effect)), abs=0.051)
    same_as(browser, alone, pictures)
    browser.find_element("id", "reset").click()
    same_as(browser, predictor, pictures)


def told_effect(browser: Chrome) -> list[float]:
    """The percentages that the page tells of the class that was added last."""
    return [float(one) for one in re.findall(r"([\d.]+) %", texts(browser, "#added li p")[-1])]


def told_of(effect: Effect) -> tuple[float | None, ...]:
    return effect.recognised, effect.before, effect.after, effect.taken


def same_as(browser: Chrome, predictor: Predictor, pictures: Tensor) -> None:
    """Ten pictures and the threshold of 20 percent are as the model in Python has them."""
    refuse(browser, 20)
    expected = predictor.predict(pictures, reject=0.2).rows()
    for row in range(0, len(pictures), EACH):
        pick(browser, pictures, row)
        assert text(browser, "#nearest th[scope=row]") == expected[row]["top"][0]["class"]
        assert agrees(nearest_distance(browser), expected[row]["distance"])
        assert (answer(browser) == "I do not know") == expected[row]["refused"]
    table = predictor.card.refusal["nearest"]
    for percent in range(0, 101, 10):
        refuse(browser, percent)
        limit, *rates = re.findall(r"-?[\d.]+", text(browser, "#refused"))
        assert float(limit) == pytest.approx(table["threshold"][percent], abs=0.0006)
        wanted = [100 * table[name][percent] for name in ("known", "unknown")]
        assert [float(rate) for rate in rates] == pytest.approx(wanted, abs=0.51)


def test_a_model_without_test_or_training_pictures(window: Chrome, predictor: Predictor, tmp_path: Path) -> None:
    """Nothing is refused at first, and what a new class does is not measured."""
    from selenium.webdriver import Keys

    bare = Predictor(dataclasses.replace(predictor.card, refusal={}), predictor.state, predictor.pool)
    held_out = {"features": torch.empty(0, predictor.card.feature_size), "labels": torch.empty(0, dtype=torch.int64)}
    path = write_playground(bare, held_out, network_of(tmp_path, bare), read_runtime(), tmp_path / "bare")
    window.get(path.as_uri())
    ready(window)
    assert not window.find_element("id", "picks").is_displayed()
    draw(window, [SEVEN])
    assert answer(window) in predictor.card.classes
    press(window, "#refusal", Keys.HOME)
    assert answer(window) == "I do not know"
    press(window, "#refusal", Keys.END)
    assert (count(window, "#nearest canvas"), text(window, "#alike")) == (0, "")
    for times in range(1, 6):
        keep(window, times)
        draw(window, [SEVEN])
    name_it(window, "bar")
    assert text(window, "#added li p").endswith("cannot be measured: the model came without test pictures.")
    assert answer(window) == "bar"
    assert errors(window) == []


def test_the_keyboard_is_enough(browser: Chrome) -> None:
    from selenium.webdriver import Keys

    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert "Skip" in browser.switch_to.active_element.text
    up, down, right = Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_RIGHT
    press(browser, "#board", *(up,) * 10, Keys.SPACE, *(right,) * 6, *(down,) * 16, Keys.SPACE)
    until(lambda: answer(browser) != "…")
    before = seen(browser)
    press(browser, "#board", right, right)  # the pen is up
    assert seen(browser) == before
    press(browser, "#keep", Keys.ENTER)
    until(lambda: count(browser, "#kept button") == 1)
    press(browser, "#kept button", Keys.ENTER)
    until(lambda: count(browser, "#kept button") == 0)
    assert browser.switch_to.active_element.get_attribute("id") == "board"  # for the next drawing
    press(browser, "#picks li:nth-child(4) button", Keys.ENTER)
    until(lambda: answer(browser) != "…")
    unreachable = browser.execute_script("""
        return [...document.querySelectorAll("input, button, a[href], summary, #board")]
          .filter((one) => one.tabIndex < 0).length""")
    assert unreachable == 0


def test_a_phone_shows_all_of_it_and_fingers_draw(browser: Chrome) -> None:
    with phone(browser):
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
        browser.refresh()
        ready(browser)
        browser.execute_script("document.getElementById('board').scrollIntoView({block: 'center'})")
        place = browser.execute_script(
            "const at = document.getElementById('board').getBoundingClientRect(); return [at.x, at.y, at.width]"
        )
        above = browser.execute_script("return window.scrollY")
        points = [[{"x": place[0] + place[2] * x, "y": place[1] + place[2] * y}] for x, y in SEVEN]
        for kind, where in zip(("touchStart", "touchMove", "touchMove", "touchEnd"), [*points, []], strict=True):
            browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": where})
        until(lambda: answer(browser) != "…")
        assert count(browser, "#board polyline") == 1
        assert browser.execute_script("return window.scrollY") == above  # the finger has drawn, not scrolled
        for part in browser.find_elements("tag name", "details"):
            part.find_element("tag name", "summary").click()
        assert too_wide(browser) == 0
        assert smallest_text(browser) >= 10
        assert barriers(browser) == []
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


def test_nothing_keeps_people_out(browser: Chrome, pictures: Tensor) -> None:
    assert barriers(browser) == []
    for times in range(1, 6):
        pick(browser, pictures, times)
        keep(browser, times)
    name_it(browser, "another")
    pick(browser, pictures, 7)
    assert barriers(browser) == []


def test_nothing_is_wrong_and_nothing_is_fetched(browser: Chrome, address: str, pictures: Tensor) -> None:
    requests(browser)  # those of tests before are done with
    browser.refresh()
    ready(browser)
    draw(browser, [SEVEN])
    pick(browser, pictures, 5)
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert requests(browser) <= {address, "about:blank"}


def test_the_page_may_not_fetch_anything(browser: Chrome) -> None:
    answer = browser.execute_async_script("""
        const done = arguments[0];
        fetch("http://127.0.0.1:9/").then(() => done("fetched"), (error) => done(String(error)));
    """)
    assert "Failed to fetch" in answer
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))
