"""`protofed watch`: a look at runs, which ends when they do."""

from __future__ import annotations

import signal
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from protofed.cli import watch as command
from protofed.report import watch
from tests.support.command_line import TINY, everything_in, finish, invoke, refused, start, succeed


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete run in it."""
    folder = tmp_path_factory.mktemp("watch")
    succeed(folder, "run", *TINY, "--out", "run", "--quiet")
    return folder


@pytest.mark.parametrize("flags", [(), ("--once",)])
def test_a_complete_run_is_shown_and_that_is_all(place: Path, flags: tuple[str, ...]) -> None:
    before = everything_in(place)
    out = succeed(place, "watch", "run", *flags).out
    assert "3/3" in out
    assert "ended" in out
    assert everything_in(place) == before


def test_watching_ends_with_the_run(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = place / "run" / "result.json"
    text = result.read_text()
    result.unlink()
    looked: list[bool] = []

    def look(folder: Path) -> watch.View:
        assert len(looked) < 6, "it goes on after the run"
        if len(looked) == 5:
            result.write_text(text)
        view = look_again(folder)
        looked.append(view.ended)
        return view

    look_again = watch.look
    monkeypatch.setattr(watch, "look", look)
    monkeypatch.setattr(command, "SECONDS", 0.01)
    try:
        succeed(place, "watch", "run")
    finally:
        result.write_text(text)
    assert looked == [False] * 5 + [True]


def test_the_page_is_served_until_ctrl_c(place: Path) -> None:
    serving = start(place, "watch", "run", "--serve")
    try:
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with build_opener(ProxyHandler({})).open(f"{address}runs.json", timeout=10) as answer:
            assert b'"done": 3' in answer.read()
        serving.send_signal(signal.SIGINT)
        outcome = finish(serving)
        assert (outcome.code, outcome.err) == (0, "")
    finally:
        serving.kill()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("empty",), "it has none of config.yaml, compare.yaml"),
        (("nothing",), "it has none of config.yaml, compare.yaml"),
        (("run", "--port", "80"), "--serve"),
        (("run", "--once", "--serve"), "it does not go with --serve"),
        (("run", "--serve", "--port", "many"), "it must be of type int"),
    ],
)
def test_wrong_input_is_one_line(place: Path, arguments: tuple[str, ...], reason: str) -> None:
    (place / "empty").mkdir(exist_ok=True)
    outcome = invoke(place, "watch", *arguments)
    assert reason in refused(outcome)
