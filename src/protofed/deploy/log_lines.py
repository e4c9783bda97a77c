"""Lines of logs: each begins with the time, in UTC, and with who says it."""

from __future__ import annotations

import datetime
import io
import logging
import time
from typing import TextIO


def say(who: str, text: str) -> None:
    """Print a line."""
    print(f"{_now()} {who}: {text}", flush=True)


def formatter(who: str) -> logging.Formatter:
    """The same for what is logged."""
    made = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {who}: %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    made.converter = time.gmtime
    return made


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
