"""What a disk does not take is said in one line, without a traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protofed.errors import NotWrittenError, UserError
from protofed.internal.atomic_files import write_folder, write_text
from protofed.runs.folder import RunFolder
from tests.support.command_line import TINY, Outcome, invoke, refused, succeed

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


def failing(number: int) -> Callable[..., Any]:
    """A call of the system that a disk refuses."""

    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


def one_line(outcome: Outcome) -> str:
    """The last line of what is said, which has no traceback."""
    assert outcome.code == 1, outcome
    assert "Traceback" not in outcome.err
    return outcome.err.splitlines()[-1]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_cannot_be_written_is_said_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    write_text(tmp_path / "file", "old")
    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(number))
            with pytest.raises(NotWrittenError, match="what was written before is whole") as caught:
                write_text(tmp_path / "file", "new")
        full = number in (errno.ENOSPC, errno.EDQUOT)
        assert ("the disk is full" if full else os.strerror(number)) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("where", ["rounds", "checkpoint"])
def test_a_run_on_such_a_disk_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, number: int
) -> None:
    opened = Path.open

    def refuse(path: Path, mode: str = "r", *given: Any, **more: Any) -> Any:
        hit = path.name == "rounds.jsonl" if where == "rounds" else path.suffix == ".bin"
        if hit and mode not in {"r", "rb"}:
            raise OSError(number, os.strerror(number))
        return opened(path, mode, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        said = one_line(invoke(tmp_path, "run", *TINY, "--out", "r", "--quiet"))
    assert said.endswith("what was written before is whole; continue with: protofed resume r")
    succeed(tmp_path, "resume", "r", "--quiet")
    assert len(RunFolder.open(tmp_path / "r").played()) == 3


@pytest.mark.parametrize("out", ["a" * 300, "/proc/nowhere/r", "file/r"])
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    for command in ("run", "compare"):
        assert "--out" in refused(invoke(tmp_path, command, *TINY, "--out", out))
    with pytest.raises(UserError, match="--out"):
        write_folder(tmp_path / out, lambda _: None)


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    succeed(tmp_path, "run", *TINY, "--rounds", "1", "--out", "r", "--quiet")
    for out, why in (("a" * 300 + ".html", "File name too long"), ("/proc/report.html", "/proc/report.html cannot be")):
        assert why in one_line(invoke(tmp_path, "report", "r", "--out", out))


def test_what_the_system_refuses_to_read_is_one_line(tmp_path: Path) -> None:
    for arguments in (("resume", "a" * 300), ("report", "a" * 300), ("watch", "a" * 300, "--once")):
        outcome = invoke(tmp_path, *arguments)
        assert outcome.code in (1, 2)
        assert "Traceback" not in outcome.err
        assert len(outcome.err.splitlines()) <= 2


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    """As in `protofed methods | head -1`."""
    command = f"{sys.executable} -m protofed datasets | true"
    done = subprocess.run(["bash", "-c", command], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
