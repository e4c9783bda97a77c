"""The log of what happened: several writers, bounded files, a full disk, and readers of whatever a file holds."""

from __future__ import annotations

import datetime
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.deploy import events
from protofed.deploy.attendance import Attendance
from protofed.deploy.events import CONNECTIONS, EVENTS, Event, Events, Reader, events_of, member_changed


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(reader: Reader) -> list[str]:
    return [event.kind for event in reader.read()]


def test_a_line_says_when_in_utc_with_milliseconds(tmp_path: Path) -> None:
    Events(tmp_path / EVENTS).write(kind="train", run="a", client=None)
    (line,) = lines(tmp_path / EVENTS)
    at = datetime.datetime.fromisoformat(line.pop("time"))
    assert at.utcoffset() == datetime.timedelta(0)
    assert at.microsecond % 1000 == 0
    assert line == {"kind": "train", "run": "a"}
    assert (tmp_path / EVENTS).stat().st_mode & 0o077 == 0


WRITER = """
import sys
from pathlib import Path
from protofed.deploy import events
events.LARGEST, events.KEPT = 20_000, 50
log = events.Events(Path(sys.argv[1]))
for number in range(500):
    log.write(kind=sys.argv[2], number=number, text="x" * 100)
"""


def test_several_processes_write_whole_lines_and_lose_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / EVENTS
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    monkeypatch.setattr(events, "KEPT", 50)
    reader = Reader(path)
    found = [(event.kind, event.more["number"]) for event in reader.read()]
    assert sorted(found) == [(name, number) for name in "abc" for number in range(500)]
    assert [number for name, number in found if name == "a"] == list(range(500))
    assert reader.unreadable == 0
    assert len(list(tmp_path.glob("events*.jsonl"))) > 3


def test_files_are_bounded_in_size_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST", 1000)
    monkeypatch.setattr(events, "KEPT", 3)
    log = Events(tmp_path / EVENTS)
    for number in range(200):
        log.write(kind="some", number=number)
    files = sorted(path for path in tmp_path.iterdir() if path.suffix == ".jsonl")
    assert len(files) == 4
    assert all(path.stat().st_size <= 1000 for path in files)
    numbers = [event.more["number"] for event in Reader(tmp_path / EVENTS).read()]
    assert numbers == list(range(200 - len(numbers), 200))


def test_what_others_cause_is_counted_when_it_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger can knock as often as he likes: lines are few, and the sums right."""
    monkeypatch.setattr(events, "HOURLY", 5)
    log = Events(tmp_path / EVENTS)
    there = Attendance(log, lambda: {7: 2})
    for number in range(1000):
        there.refused(f"10.0.0.{number}", 401, "it has no key", None)
        there.refused("10.0.0.1", 403, "it speaks for another", 7)
    there.close()
    written = lines(tmp_path / CONNECTIONS)
    assert len(written) == 5 + 2
    assert sum(line.get("times", 1) for line in written if line["refused"] == "it has no key") == 1000
    assert sum(line.get("times", 1) for line in written if line.get("client") == 2) == 1000
    assert there.refusals == {"not_signed": 1000, "not_admitted": 1000}


def test_who_is_turned_away_pushes_no_other_event_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long somebody knocks: years of the most that is written, here in small files."""
    monkeypatch.setattr(events, "LARGEST", 2000)
    monkeypatch.setattr(events, "KEPT", 2)
    now = [0.0]
    monkeypatch.setattr("protofed.deploy.events.time.monotonic", lambda: now[0])
    log = Events(tmp_path / EVENTS)
    log.write(kind="run.begin", run="a")
    there = Attendance(log, lambda: {7: 2})
    for hour in range(20):
        now[0] = hour * 3600.0
        for number in range(210):
            there.refused(f"10.0.0.{number}", 401, "it has no key", None if number % 2 else 7)
    there.close()
    assert kinds(Reader(tmp_path / EVENTS)) == ["run.begin"]
    files = [path for path in tmp_path.glob("*.jsonl") if path.name != EVENTS]
    assert len(files) == 3
    assert all(path.stat().st_size <= 2000 for path in files)
    assert set(kinds(Reader(tmp_path / CONNECTIONS))) == {"connection"}


def test_what_is_counted_takes_bounded_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HOURLY", 0)
    log = Events(tmp_path / EVENTS)
    for number in range(1000):
        log.write_some(kind="train", refused=f"reason {number}", bytes_in=3)
    log.close()
    written = lines(tmp_path / EVENTS)
    assert len(written) == events.MOST_SUMS + 1
    assert sum(line["times"] for line in written) == 1000
    assert sum(line["bytes_in"] for line in written) == 3000


def test_an_hour_later_lines_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HOURLY", 1)
    now = [0.0]
    monkeypatch.setattr("protofed.deploy.events.time.monotonic", lambda: now[0])
    log = Events(tmp_path / EVENTS)
    for now[0] in (0.0, 1.0, 2.0, 3601.0):
        log.write_some(kind="connection", refused="why", address="a")
    assert [line.get("times", 1) for line in lines(tmp_path / EVENTS)] == [1, 2, 1]


def test_a_full_disk_ends_nothing_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Events(tmp_path / EVENTS)
    log.write(kind="before")
    real = os.write

    def half(file: int, data: bytes) -> int:
        return real(file, data[: len(data) // 2])

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for write in (half, full):
        monkeypatch.setattr(os, "write", write)
        log.write(kind="lost")
    monkeypatch.undo()
    (said,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / EVENTS) in said
    log.write(kind="after")
    assert [line["kind"] for line in lines(tmp_path / EVENTS)] == ["before", "events.lost", "after"]
    assert lines(tmp_path / EVENTS)[1]["times"] == 2


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    log = Events(tmp_path / EVENTS)
    log.write(kind="first")
    with (tmp_path / EVENTS).open("a") as file:
        file.write('{"time": "2026-')
    reader = Reader(tmp_path / EVENTS)
    assert kinds(reader) == ["first"]
    log.write(kind="second")
    assert kinds(reader) == ["second"]
    assert reader.unreadable == 1


def test_a_reader_goes_on_in_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LARGEST", 300)
    log, reader, seen = Events(tmp_path / EVENTS), Reader(tmp_path / EVENTS), []
    later = Reader(tmp_path / EVENTS, anew=True)
    for number in range(40):
        log.write(kind="some", number=number)
        if number % 3 == 0:
            seen += [event.more["number"] for event in reader.read()]
    seen += [event.more["number"] for event in reader.read()]
    assert seen == list(range(40))
    assert len(kinds(later)) > 0
    assert kinds(Reader(tmp_path / EVENTS, anew=True)) == []


TEXT = st.text("a1\x1bé\ud800", max_size=4)
SOME = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
ANYTHING = SOME | st.lists(SOME, max_size=2) | st.dictionaries(TEXT, SOME, max_size=2)
NAMES = ["time", "kind", "run", "round", "client", "bytes_in", "times", "refused", "sent", "limits", "left_out", "step"]


@given(st.dictionaries(st.sampled_from(NAMES), ANYTHING))
def test_any_line_can_be_read(said: dict[str, Any]) -> None:
    event = Event.of(json.dumps(said | {"time": "2026-11-18T21:40:44.844+00:00"}))
    if isinstance(said.get("kind"), str):
        assert event is not None
        assert type(event.bytes_in) is int
        assert isinstance(event.run, str)
        assert event.kind.isprintable()
    else:
        assert event is None


@given(st.binary())
def test_any_bytes_can_be_read(data: bytes) -> None:
    Event.of(data)


def test_a_change_of_members_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "federation.yaml").touch()
    (tmp_path / "server").mkdir()
    member_changed(tmp_path / "server", 3, "removed", key="SHA256:x")
    (line,) = lines(events_of(tmp_path))
    assert (line["kind"], line["client"], line["change"], line["key"]) == ("member", 3, "removed", "SHA256:x")


def test_who_comes_and_goes(tmp_path: Path) -> None:
    there = Attendance(Events(tmp_path / EVENTS), lambda: {11: 0, 12: 1})
    there.came(11)
    there.came(11)
    there.look([11, 12])  # 12 was connected when the server began
    there.look([12])
    there.left(12)
    there.left(12)
    told = [(line["kind"], line["client"], line.get("why")) for line in lines(tmp_path / EVENTS)]
    assert told == [
        ("client.connected", 0, None),
        ("client.connected", 1, None),
        ("client.gone", 0, "nothing was heard of it"),
        ("client.gone", 1, "it went"),
    ]
    assert there.here == set()
