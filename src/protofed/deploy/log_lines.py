"""Lines of logs: each begins with the time, in UTC, and with who says it. A log is a file of bounded size."""

from __future__ import annotations

import datetime
import fcntl
import io
import logging
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

LARGEST = 10_000_000
"""Bytes of a log; then what it holds becomes the older one, of which there is one."""


def say(who: str, text: str) -> None:
    """Print a line."""
    print(f"{_now()} {who}: {text}", flush=True)


def formatter(who: str) -> logging.Formatter:
    """The same for what is logged."""
    made = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {who}: %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    made.converter = time.gmtime
    return made


class LogFile(logging.FileHandler):
    """A full disk ends nothing, and is said by who has something to keep."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        keep_small(Path(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the line is lost."""


def keep_small(log: Path) -> None:
    """Begin a log anew that has become large, in its place: it is locked, and processes below have it open."""
    with suppress(OSError):
        if log.stat().st_size <= LARGEST:
            return
        with log.with_suffix(".1.log").open("ab") as older:
            with suppress(OSError):  # on a file system without locks as any
                fcntl.flock(older, fcntl.LOCK_EX)
            if log.stat().st_size > LARGEST:  # still: another process may have done it
                older.truncate(0)  # first, where there may be no room for two
                with log.open("r+b") as file:
                    shutil.copyfileobj(file, older)
                    file.truncate(0)


class Stamped(io.TextIOBase):
    """A stream that begins every line so, whoever writes it: warnings of libraries, and errors that nobody caught."""

    def __init__(self, stream: TextIO, who: str) -> None:
        self.stream, self.who = stream, who
        self._begun = ""  # of the line that is being written

    def write(self, text: str) -> int:
        """Pass on the lines that are whole by now."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self.stream.write(f"{_now()} {self.who}: {line}\n")
        if lines:
            self.stream.flush()
        return len(text)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
