"""What happened, at a server and at a client alike: a line of JSON for every event, in files of bounded size.

Every line has `time` and `kind`; the others are where they apply. A line without `refused`, `failed` and `late` is of
what was done. What is asked of a client has the kind of the message; docs/operations.md lists all kinds.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

EVENTS = "events.jsonl"
"""The name of the file, in a client's folder and in that of a server."""
CONNECTIONS = "connections.jsonl"
"""Beside a server's: whom it has turned away. Anybody can cause as many as are written, and pushes out only these."""
LARGEST = 10_000_000
"""Bytes of a file; then a new one is begun."""
KEPT = 9
"""Files before the one that is written."""
HOUR = 3600.0
"""Seconds."""
HOURLY = 200
"""Lines an hour of what others can cause as often as they like; the rest of the hour is counted."""
MOST_SUMS = 50
"""Different events that are counted in an hour."""
LONGEST = 300
"""Characters of a text that is read."""
SUMMED = ("times", "bytes_in", "bytes_out")


class Events:
    """Appends to a file that its owner alone may read; several processes and threads may.

    A full disk ends nothing: it is said once on standard error, and in the file when there is room again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0  # events that could not be written
        self._mutex = threading.RLock()
        self._hour, self._lines = time.monotonic(), 0
        self._sums: dict[tuple[Any, ...], dict[str, Any]] = {}  # of what came too often

    def write(self, **what: Any) -> None:
        """One event; keys without a value are left out."""
        with self._mutex:
            try:
                if self.lost:
                    self._append(_line({"kind": "events.lost", "times": self.lost}))
                    self.lost = 0
                self._append(_line(what))
            except OSError as error:
                if not self.lost:
                    why = error.strerror or type(error).__name__
                    print(f"events cannot be written to {self.path}: {why}", file=sys.stderr, flush=True)
                self.lost += 1

    def write_some(self, **what: Any) -> None:
        """One event of those that others can cause: after so many in an hour, only how many there were."""
        with self._mutex:
            if time.monotonic() - self._hour >= HOUR:
                self.close()
                self._hour, self._lines = time.monotonic(), 0
            self._lines += 1
            if self._lines <= HOURLY:
                self.write(**what)
                return
            same = {name: what.get(name) for name in ("kind", "client", "refused", "failed")}
            key = tuple(same.values())
            if key not in self._sums and len(self._sums) >= MOST_SUMS:
                key, same = (), {"kind": "others", "refused": "of many kinds"}
            sums = self._sums.setdefault(key, same | dict.fromkeys(SUMMED, 0))
            for name in SUMMED:
                sums[name] += what.get(name, 1 if name == "times" else 0)

    def close(self) -> None:
        """Write what was only counted so far."""
        with self._mutex:
            for sums in self._sums.values():
                self.write(**sums)
            self._sums = {}

    def _append(self, line: bytes) -> None:
        with _alone(self.path.with_suffix(".lock")):
            if self.path.exists() and self.path.stat().st_size + len(line) > LARGEST:
                for number in range(KEPT, 0, -1):
                    with suppress(FileNotFoundError):
                        _older(self.path, number - 1).replace(_older(self.path, number))
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":  # the machine stopped while a line was written
                    line = b"\n" + line
                if os.write(file, line) < len(line):
                    os.ftruncate(file, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)


def member_changed(
    server: Path, client: int, change: Literal["admitted", "removed", "renewed"], **more: str | float | None
) -> None:
    """Record that the members of a federation have changed.

    Args:
        server: the server's part of the federation's folder.
        client: whose membership it is.
        change: what has happened to it.
        **more: what else there is to say, such as the fingerprint of its key.
    """
    Events(server / EVENTS).write(kind="member", client=client, change=change, **more)


def _line(what: Mapping[str, Any]) -> bytes:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    return (
        json.dumps({"time": now, **{name: value for name, value in what.items() if value is not None}}).encode() + b"\n"
    )


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """As the only process that writes; on a file system without locks as any."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _older(path: Path, number: int) -> Path:
    return path.with_suffix(f".{number}.jsonl") if number else path


@dataclass(frozen=True)
class Event:
    """A line as it is read: the file may hold anything."""

    time: datetime.datetime
    kind: str
    run: str = ""
    method: str = ""
    step: str = ""  # at a server: whether a message was asked or answered
    round: int | None = None
    client: int | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    times: int = 1
    refused: str = ""
    failed: str = ""
    late: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)  # what only some kinds have

    @property
    def why_not(self) -> str:
        """Why it was not done; nothing if it was."""
        return self.refused or self.failed or self.late

    @classmethod
    def of(cls, line: bytes | str) -> Event | None:
        """That of a line; none if it is not one."""
        try:
            said = json.loads(line)
            at = datetime.datetime.fromisoformat(said["time"])
            if at.tzinfo is None or not isinstance(said["kind"], str):
                return None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        del said["time"]
        given = {name: said.pop(name) for name in list(said) if name in cls.__dataclass_fields__ and name != "more"}
        numbers = {name: value for name, value in given.items() if type(value) is int and 0 <= value < 2**63}
        texts = {name: shown(value) for name, value in given.items() if isinstance(value, str)}
        usable: dict[str, Any] = {name: numbers[name] for name in NUMBERS if name in numbers}
        usable |= {name: texts[name] for name in TEXTS if name in texts}
        return cls(at, **usable, more=said)


NUMBERS = ("round", "client", "bytes_in", "bytes_out", "times")
TEXTS = ("kind", "run", "method", "step", "refused", "failed", "late")


def shown(text: str) -> str:
    """A text as part of a line that can be shown anywhere."""
    return "".join(one if one.isprintable() else "?" for one in text[:LONGEST])


def events_of(folder: Path) -> Path:
    """The events of a federation's folder, or of a client's."""
    return (folder / "server" if (folder / "federation.yaml").is_file() else folder) / EVENTS


class Reader:
    """Reads the events of a file and of those before it, and later what has come since.

    Args:
        path: of the file.
        anew: whether only what comes from now on is read.
    """

    def __init__(self, path: Path, anew: bool = False) -> None:
        self.path = path
        self.unreadable = 0
        self._file, self._at = (0, 0), 0  # which file was read last, and how far
        if anew:
            for _ in self.read():
                pass

    def read(self) -> Iterator[Event]:
        """What is there that was not read yet, oldest first; a line in the writing waits."""
        paths = [path for number in range(KEPT, -1, -1) if (path := _older(self.path, number)).is_file()]
        known = [(path, _identity(path)) for path in paths]
        files = [file for _, file in known]
        if self._file in files:
            known = known[files.index(self._file) :]
        for path, file in known:
            if file != self._file:
                self._file, self._at = file, 0
            with suppress(FileNotFoundError), path.open("rb") as lines:
                if _identity(path) != file:  # a new one was begun just now
                    return
                lines.seek(self._at)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    event = Event.of(line)
                    if event is None:
                        self.unreadable += line != b"\n"
                    else:
                        yield event


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino
