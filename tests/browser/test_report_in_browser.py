"""The report in a real browser: Debian's Chromium, driven by Selenium.  make test-browser"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from protofed.report.html import gather, write_report
from protofed.runs.failure import FailedRun
from tests.support.chromium import (
    Chrome,
    barriers,
    click,
    count,
    dark,
    errors,
    focused,
    hover,
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
from tests.support.command_line import succeed

pytestmark = pytest.mark.browser

SECTIONS = (
    *("runs", "summary", "motion", "curves", "loss", "configurations", "holds", "clients", "classes"),
    *("confusion", "samples", "plane", "prototypes", "costs"),
)
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"


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
        dark(chrome, request.param)
        chrome.get(page.as_uri())
        yield chrome


@pytest.fixture(autouse=True)
def _afresh(browser: Chrome, page: Path) -> None:
    """What one test has chosen does not matter to the next."""
    browser.get("about:blank")
    browser.get(page.as_uri())


def rows_of(browser: Chrome, section: str) -> list[str]:
    """The rows of its table, the cells between strokes."""
    cells = "[...row.children].map((one) => one.textContent).join('|')"
    script = f"return [...document.querySelectorAll(arguments[0])].map((row) => {cells})"
    return list(browser.execute_script(script, f"{section} tbody tr"))


def data(browser: Chrome) -> dict[str, Any]:
    return dict(json.loads(browser.execute_script("return document.getElementById('data').textContent")))


def test_nothing_is_wrong_and_nothing_is_fetched(browser: Chrome, page: Path) -> None:
    assert errors(browser) == []
    assert requests(browser) <= {page.as_uri(), "about:blank"}


def test_the_page_may_not_fetch_anything(browser: Chrome) -> None:
    answer = browser.execute_async_script("""
        const done = arguments[0];
        fetch("http://127.0.0.1:9/").then(() => done("fetched"), (error) => done(String(error)));
    """)
    assert "Failed to fetch" in answer
    assert any("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


def test_each_section_is_there(browser: Chrome) -> None:
    assert [count(browser, f"#{section}[data-drawn=yes]:not([hidden])") for section in SECTIONS] == [1] * len(SECTIONS)
    assert {f"#{section}" for section in SECTIONS} <= set(
        browser.execute_script("return [...document.querySelectorAll('nav a')].map((one) => one.getAttribute('href'))")
    )


def test_figures_show_their_data(browser: Chrome) -> None:
    told = data(browser)
    lines, first = len(told["lines"]), next(iter(told["looks"].values()))
    assert count(browser, "#curves path.curve") == count(browser, "#loss path.curve") == lines
    assert count(browser, "#holds td.cell") == 4 * 10
    assert count(browser, "#clients circle.dot") == 4 * lines
    assert count(browser, "#classes td.cell") == 10 * lines
    assert count(browser, "#confusion td.cell") == 100
    assert count(browser, "#plane circle.point") == len(first["points"]) > 100
    assert count(browser, "#plane .mark") >= len(first["marks"])
    assert count(browser, "#runs tbody tr") == 2 * lines
    assert count(browser, "#summary tbody tr") == lines
    assert count(browser, "#costs rect.bar") >= 2 * lines
    assert [int(text) for text in texts(browser, "#holds td.cell")] == [n for row in first["holds"] for n in row]
    assert texts(browser, "#holds .scale")[0].split() == ["0", str(max(map(max, first["holds"])))]
    assert "client 0 (scanned)" in texts(browser, "#holds tbody th")
    assert any("lambda1" in text for text in texts(browser, "#configurations tbody td"))


def test_numbers_are_those_of_the_results(browser: Chrome, page: Path) -> None:
    """Of every run the accuracy, the megabytes and the seconds; of every method the mean: 21 numbers."""
    titles = [re.sub(r" [▴▾]$", "", text) for text in texts(browser, "#runs thead th")]
    rows = [texts(browser, f"#runs tbody tr:nth-child({n}) > *") for n in range(1, 7)]
    means: dict[str, list[float]] = {}
    score = data(browser)["score"]
    for row in rows:
        shown = dict(zip(titles, row, strict=True))
        result = json.loads((page.parent / shown["run"] / "result.json").read_text())
        assert shown["%"] == f"{result['accuracy'][result['score']]['last']:.2f}"
        assert float(shown["MB"]) == float(f"{(result['bytes_up'] + result['bytes_down']) / 1e6:.3g}")
        assert float(shown["seconds"]) == float(f"{result['seconds']:.3g}")
        means.setdefault(result["method"], []).append(result["accuracy"][score]["last"])
    summary = dict(
        zip(texts(browser, "#summary tbody th"), texts(browser, "#summary tbody td:nth-child(2)"), strict=True)
    )
    for method, values in means.items():
        assert summary[method].startswith(f"{sum(values) / len(values):.2f} ± ")


def colours(browser: Chrome) -> list[str]:
    script = "return [...document.querySelectorAll('#plane circle.point')].map((one) => one.getAttribute('stroke'))"
    return list(browser.execute_script(script))


def test_a_choice_changes_the_colours(browser: Chrome) -> None:
    told = next(iter(data(browser)["looks"].values()))
    seen = {}
    for place, by in ((5, "domain"), (4, "client"), (2, "class")):
        select(browser, "plane-by", by)
        seen[by] = colours(browser)
        assert len(set(seen[by])) == len({point[place] for point in told["points"]})
    assert seen["class"] != seen["domain"]


def test_pointing_at_a_mark_says_what_it_is(browser: Chrome) -> None:
    hover(browser, "#plane svg .mark")
    assert "class" in tip(browser)
    hover(browser, "#clients circle.dot")
    assert "client 0 (scanned)" in tip(browser)


TAPPED = {
    "#curves svg": "round ",
    "#loss svg": "round ",
    "#plane circle.point": "class ",
    "#plane svg .mark": "prototype of class ",
    "#clients circle.dot": "client ",
    "#holds td.cell": "samples",
    "#confusion td.cell": "answered as",
    "#samples li": "answered",
    "#costs rect.bar": "bytes",
    "#motion circle.sample": "answered",
}


def test_a_tap_says_what_is_there(browser: Chrome) -> None:
    with phone(browser):
        browser.refresh()
        for selector, words in TAPPED.items():
            tap(browser, selector)
            until(browser, lambda: words in tip(browser))  # noqa: B023
            tap(browser, f"{selector.split()[0]} h2")
            until(browser, lambda: not tip(browser))
        assert errors(browser) == []


def test_dots_have_the_colours_of_their_key(browser: Chrome) -> None:
    """What is seen through is another colour, which may be told apart from the others less well."""
    opaque = """
        const style = (one) => getComputedStyle(one);
        return [...document.querySelectorAll("circle.dot, circle.point, circle.sample, .mark, .prototype")]
          .filter((one) => style(one).opacity !== "1" || style(one).fillOpacity !== "1").length"""
    assert browser.execute_script(opaque) == 0


def test_a_crosshair_says_values(browser: Chrome) -> None:
    click(browser, "#curves-seeds")
    hover(browser, "#curves svg")
    told = tip(browser).splitlines()
    round_ = int(told[0].removeprefix("round "))
    lines, score = data(browser)["lines"], data(browser)["score"]
    for label, runs in lines.items():
        values = [run["curves"][score][round_ - 1] for run in runs]
        assert any(one.startswith(f"{label}: {sum(values) / len(values):.2f}") for one in told[1:]), told
        seeds = ", ".join(f"seed {run['seed']}: {value:.2f}" for run, value in zip(runs, values, strict=True))
        assert any(one.endswith(f"({seeds})") for one in told[1:]), told


def test_the_keyboard_is_enough(browser: Chrome) -> None:
    from selenium.webdriver import Keys

    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    assert "Skip" in browser.switch_to.active_element.text
    press(browser, "#curves .steps", Keys.END, Keys.ARROW_LEFT)
    assert tip(browser).startswith("round 3")
    slider = browser.find_element("css selector", "#curves .steps")
    assert (slider.get_attribute("aria-valuenow"), slider.get_attribute("aria-valuetext")[:7]) == ("2", "round 3")
    press(browser, "#plane .steps", Keys.ARROW_RIGHT)
    assert "class" in tip(browser)
    press(browser, "#curves .figure .legend button", Keys.SPACE)
    assert count(browser, "#curves path.curve") == 2
    assert browser.switch_to.active_element.text == "mp-fedcl"  # where one was
    press(browser, "#runs-by-0", Keys.ENTER)
    assert focused(browser) == "runs-by-0"
    press(browser, "#client-1", Keys.ENTER)
    assert count(browser, "#clients path.curve") == 2  # of the lines that are not hidden
    unreachable = browser.execute_script("""
        return [...document.querySelectorAll("select, input, button, a[href], .wide, .steps")]
          .filter((one) => one.tabIndex < 0).length""")
    assert unreachable == 0


def test_a_click_on_a_name_hides_its_line(browser: Chrome) -> None:
    click(browser, "#curves .legend li:nth-child(2) button")
    drawn = ("#curves path.curve", "#loss path.curve", "#summary tbody tr", "#costs tbody tr", "#curves tbody tr")
    assert [count(browser, selector) for selector in drawn] == [2] * 5
    assert texts(browser, "#motion figcaption b") == ["mp-fedcl", "fedavg"]
    assert count(browser, "#motion polyline.score") == 2
    click(browser, "#curves .legend li:nth-child(2) button")
    assert count(browser, "#curves path.curve") == 3
    click(browser, "#loss .legend li:nth-child(3) button", shift=True)
    assert texts(browser, "#curves .legend button[aria-pressed=true]") == [" fedavg"]
    click(browser, "#motion .course .legend li:nth-child(3) button")  # now all are hidden
    assert count(browser, "#motion figure") == count(browser, "#summary tbody tr") == 0
    click(browser, "#motion .legend li:nth-child(3) button")
    click(browser, "#loss .legend li:nth-child(3) button", shift=True)
    assert count(browser, "#loss path.curve") == count(browser, "#costs tbody tr") == 3


def test_seeds_and_logarithms(browser: Chrome) -> None:
    assert count(browser, "#curves path.seed") == 0
    before = texts(browser, "#curves svg text")
    click(browser, "#curves-seeds")
    assert count(browser, "#curves path.seed") == 6
    click(browser, "#curves-logx")
    assert texts(browser, "#curves svg text") != before
    click(browser, "#curves-logy")
    assert count(browser, "#curves path.curve") == 3


def test_choices_redraw(browser: Chrome) -> None:
    before = browser.find_element("css selector", "#curves path.curve").get_attribute("d")
    select(browser, "curves-over", "bytes")
    assert browser.find_element("css selector", "#curves path.curve").get_attribute("d") != before
    for name in ("own/own/head", "global/all/head"):
        select(browser, "page-score", name)
        assert texts(browser, "#summary thead th")[1] == name
    select(browser, "page-score", "global/domain/head")
    assert count(browser, "#clients rect.domain") == 3 * 4
    target = browser.find_element("id", "curves-target")
    browser.execute_script(
        "arguments[0].value = '100'; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", target
    )
    assert texts(browser, "#curves tbody td:nth-child(2)") == ["not reached"] * 3


def test_runs_are_found_and_sorted(browser: Chrome) -> None:
    box = browser.find_element("id", "runs-words")
    box.send_keys("fedavg")
    until(browser, lambda: count(browser, "#runs tbody tr") == 2)
    assert focused(browser) == "runs-words"
    browser.switch_to.active_element.send_keys(" seed=1")
    until(browser, lambda: texts(browser, "#runs tbody th") == ["fedavg-seed1"])
    browser.find_element("id", "runs-words").clear()
    browser.find_element("id", "runs-words").send_keys("-fedavg -mp")
    until(browser, lambda: count(browser, "#runs tbody tr") == 2)
    browser.find_element("id", "runs-words").clear()
    browser.execute_script("document.getElementById('runs-words').dispatchEvent(new Event('input'))")
    until(browser, lambda: count(browser, "#runs tbody tr") == 6)
    place = [re.sub(r" [▴▾]$", "", text) for text in texts(browser, "#runs thead th")].index("%")
    for expected in (True, False):
        click(browser, f"#runs-by-{place}")
        values = [float(text) for text in texts(browser, f"#runs tbody tr > :nth-child({place + 1})")]
        assert values == sorted(values, reverse=expected)


def test_a_word_is_looked_for_once(browser: Chrome) -> None:
    browser.execute_script("""
        window.drawn = 0;
        new MutationObserver(() => { window.drawn += 1; }).observe(document.getElementById("runs"), {childList: true});
        const box = document.getElementById("runs-words");
        for (const letter of "fedavg") { box.value += letter; box.dispatchEvent(new Event("input")); }
    """)
    until(browser, lambda: count(browser, "#runs tbody tr") == 2)
    assert browser.execute_script("return window.drawn") == 1


def test_nothing_keeps_people_out(browser: Chrome) -> None:
    assert barriers(browser) == []


def test_a_phone_shows_all_of_it(browser: Chrome) -> None:
    with phone(browser):
        browser.refresh()
        assert too_wide(browser) == 0
        assert smallest_text(browser) >= 10
        assert barriers(browser) == []


def test_it_can_be_printed(browser: Chrome) -> None:
    shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
    with printed(browser):
        hidden = [browser.execute_script(shown, selector) for selector in ("nav", "#curves .controls")]
        whole = browser.execute_script("return getComputedStyle(document.querySelector('.tall')).overflowY")
    assert hidden == ["none", "none"]
    assert whole == "visible"
    assert len(browser.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000


@pytest.mark.parametrize(
    "values", [[0.1 + 0.2, 0.3], [1e300, -1e300], [5e-324, 1e-300], [0.0, 0.0], [1e30, 1e30], [None, 1.0]]
)
def test_numbers_of_any_size_are_drawn(page: Path, browser: Chrome, tmp_path: Path, values: list[float | None]) -> None:
    found = gather([page.parent])
    for runs in found["lines"].values():
        for run in runs:
            run["loss"] = (values * len(run["rounds"]))[: len(run["rounds"])]
    write_report(found, tmp_path / "sizes.html")
    browser.get((tmp_path / "sizes.html").as_uri())
    for box in ("#loss-logy", "#loss-logx"):
        assert (errors(browser), count(browser, "#costs[data-drawn=yes]")) == ([], 1)
        click(browser, box)


def test_a_line_of_which_no_run_has_ended_says_so_wherever_it_is_drawn(
    page: Path, browser: Chrome, tmp_path: Path
) -> None:
    folder = tmp_path / "some"
    shutil.copytree(page.parent, folder)
    for seed in (0, 1):
        (folder / f"fedavg-seed{seed}" / "result.json").unlink()
    FailedRun("fedavg", 1, "diverged", "the loss became nan", round=3).write(folder / "fedavg-seed1")
    (folder / "mp-fedcl-seed0/result.json").unlink()
    write_report(gather([folder]), tmp_path / "some.html")
    browser.get((tmp_path / "some.html").as_uri())
    assert errors(browser) == []
    marked = "fedavg (round 4 of 4, diverged (round 3))"
    for section in ("curves", "clients", "loss"):
        assert [text.strip() for text in texts(browser, f"#{section} .legend button")] == [
            "mp-fedcl",
            "fedplcc",
            marked,
        ]
    press(browser, "#curves .steps", "\ue010")  # End
    assert marked in tip(browser)
    (first, *_) = [text for text in texts(browser, "#top .warning") if "mp-fedcl" in text]
    assert first == "mp-fedcl-seed0 was cut off after round 4 of 4; it is in no number or figure."


def test_where_all_clients_test_one_model_on_one_set_there_is_no_worst_client(browser: Chrome) -> None:
    def titles() -> list[str]:
        return [text.split(" ▾")[0] for text in texts(browser, "#summary th button")]

    select(browser, "page-score", "own/own/head")
    assert titles()[2:4] == ["worst client", "spread"]
    select(browser, "page-score", "global/all/head")
    assert not {"worst client", "spread"} & {*titles()}
    assert all(len(row.split("|")) == len(titles()) for row in rows_of(browser, "#summary"))


def test_names_are_text(page: Path, browser: Chrome, tmp_path: Path) -> None:
    told = json.dumps(gather([page.parent]))
    for name in ("fedavg", "scanned", "mp-fedcl-seed0"):
        told = told.replace(name, json.dumps(f"{EVIL}{name}")[1:-1])
    found = json.loads(told)
    for look in found["looks"].values():
        look["classes"] = [f"{EVIL}{name}" for name in look["classes"]]
    found["about"][EVIL] = found["commands"][0] = found["runs"][0]["reason"] = EVIL
    write_report(found, tmp_path / "evil.html")
    browser.get((tmp_path / "evil.html").as_uri())
    assert errors(browser) == []
    assert browser.execute_script("return window.hacked") is None
    assert count(browser, "main script, main img") == 0
    for section in ("runs", "summary", "holds", "clients", "classes", "confusion", "plane"):
        assert EVIL in "".join(texts(browser, f"#{section}")), section
    click(browser, "#client-0")
    with phone(browser):
        browser.refresh()
        assert too_wide(browser) == 0
    assert errors(browser) == []
