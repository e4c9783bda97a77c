"""Logs of processes that run for years: bounded, in place, and a full disk ends nothing."""

from __future__ import annotations

import errno
import fcntl
import logging
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protofed.deploy import log_lines
from protofed.deploy.log_lines import keep_small
from protofed.deploy.processes import alone, is_running, logged
from protofed.deploy.wire import Packet
from protofed.deploy.worker import WorkerProcess

LOG = logging.getLogger("flwr")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_lines, "LARGEST", 2000)
    return tmp_path / "server.log"


def numbers(*paths: Path) -> list[int]:
    return [int(line.split()[-1]) for path in paths for line in path.read_text().splitlines()]


def test_a_log_is_bounded_and_loses_its_oldest_lines_alone(log: Path) -> None:
    with logged(log, "server"):
        for number in range(500):
            LOG.info("line %d", number)
    files = sorted(log.parent.iterdir())
    assert [path.name for path in files] == ["server.1.log", "server.log"]
    assert all(path.stat().st_size <= 2100 for path in files)
    kept = numbers(*files)
    assert kept == list(range(500 - len(kept), 500))
    assert len(kept) > 40


def test_a_server_is_seen_to_run_when_its_log_has_begun_anew(log: Path) -> None:
    with alone(log), logged(log, "server"):
        for number in range(100):
            LOG.info("line %d", number)
        assert log.with_suffix(".1.log").exists()
        assert is_running(log)
    assert not is_running(log)


WRITES = "import sys; print('x' * 3000, flush=True); input(); print('after', flush=True)"


def test_a_process_below_goes_on_in_the_new_one(log: Path) -> None:
    with (
        log.open("ab") as file,
        subprocess.Popen([sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stdout=file) as process,
    ):
        while not log.stat().st_size > 3000:
            assert process.poll() is None
        keep_small(log)
        process.communicate(b"\n")
    assert log.read_bytes() == b"after\n"
    assert log.with_suffix(".1.log").read_bytes() == b"x" * 3000 + b"\n"


PRINTS = """
import sys
from protofed.deploy.wire import read_frame, write_frame
write_frame(sys.stdout.buffer, {"ready": True})
while True:
    read_frame(sys.stdin.buffer)
    print("x" * 1000, file=sys.stderr, flush=True)
    write_frame(sys.stdout.buffer, {"code": 1, "reason": ""})
"""


def test_what_a_worker_prints_is_bounded(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a server makes it print."""
    python = log.with_name("python")
    python.write_text(f"#!{sys.executable}\n{PRINTS}")
    python.chmod(0o700)
    monkeypatch.setattr("protofed.deploy.worker.sys", SimpleNamespace(executable=str(python)))
    with WorkerProcess(log.parent, []) as worker:
        for _ in range(20):
            assert worker.answer("train", Packet("", b"", b""), 60.0) == (1, "")
    assert sorted(path.name for path in log.parent.glob("*.log")) == ["client.1.log", "client.log"]
    assert worker.log.stat().st_size <= 4000


def test_who_comes_second_does_not_throw_away_what_the_first_has_kept(log: Path) -> None:
    log.write_text("old " * 1000)
    older = log.with_suffix(".1.log")
    with older.open("ab") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = threading.Thread(target=keep_small, args=(log,))
        second.start()
        older.write_text("kept")
        log.write_text("")
    second.join(30)
    assert not second.is_alive()
    assert older.read_text() == "kept"


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_log_that_finds_no_room_for_an_older_one_goes_on(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with logged(log, "server"):
        with monkeypatch.context() as here:
            here.setattr("protofed.deploy.log_lines.shutil.copyfileobj", full)
            for number in range(100):
                LOG.info("line %d", number)
        assert numbers(log) == list(range(100))
        LOG.info("line 100")
    assert numbers(log.with_suffix(".1.log"), log) == list(range(101))
    assert capsys.readouterr().err == ""


def test_a_full_disk_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with logged(Path("/dev/full"), "server"):
        LOG.info("lost")
    assert capsys.readouterr().err == ""
