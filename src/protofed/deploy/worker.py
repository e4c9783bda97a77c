"""A client's worker, seen from the process that started it: it lives between messages, and is replaced if it dies."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from protofed.deploy.log_lines import keep_small
from protofed.deploy.processes import running
from protofed.deploy.wire import Packet, read_frame, write_frame
from protofed.errors import UserError


class WorkerDiedError(Exception):
    """The worker has ended, or was ended because it did not answer in time."""


class WorkerProcess:
    """A process that answers messages, one after the other.

    Args:
        place: the client's folder, where its log is.
        words: what the worker is told on its command line.
        told: signals that have asked for the end; then no answer is waited for.
    """

    def __init__(self, place: Path, words: Sequence[str], told: Sequence[int] = ()) -> None:
        self.place, self.words, self.told, self.log = place, words, told, place / "client.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> WorkerProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it has read its data.

        Raises:
            UserError: the data cannot be used, or client.yaml.
            WorkerDiedError: it ended before that.
        """
        command = [sys.executable, "-P", "-m", "protofed.deploy.warm_worker", *self.words]
        self._process = self._stack.enter_context(running(command, self.place / "flower", self.log, pipes=True))
        head, _ = self._read(None)
        if "error" in head:
            self.stop()
            raise UserError.told(head["error"], head["hint"])

    @property
    def pid(self) -> int | None:
        """The number of the process that is there now."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process = None
        self._stack.close()

    def answer(self, kind: str, packet: Packet, seconds: float) -> Packet | tuple[int, str]:
        """Its answer to a message, or the code and reason of an error.

        Args:
            kind: what is asked.
            packet: the message.
            seconds: until nobody waits for the answer any longer.

        Raises:
            WorkerDiedError: there is none, and the worker is gone; the next message starts another.
        """
        keep_small(self.log)  # to which it prints
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        head: dict[str, Any] = {"kind": kind, "text": packet.text, "digest": packet.digest.hex()}
        try:
            write_frame(self._process.stdin, head, packet.data)
        except BrokenPipeError:
            self._died("ended")
        head, data = self._read(seconds)
        if "code" in head:
            return int(head["code"]), str(head["reason"])
        return Packet(head["text"], data, bytes.fromhex(head["digest"]))

    def _read(self, seconds: float | None) -> tuple[dict[str, Any], bytes]:
        assert self._process is not None
        assert self._process.stdout is not None
        until = None if seconds is None else time.monotonic() + seconds
        while until is not None:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, min(1.0, until - time.monotonic())))
            if ready:
                break
            if self.told:
                self._died("was ended")
            if time.monotonic() >= until:
                self._died(f"did not answer within {seconds:g} s and was ended")
        try:
            return read_frame(self._process.stdout)
        except (EOFError, ValueError):
            self._died("ended")
            raise  # it has raised

    def _died(self, how: str) -> None:
        last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        self.stop()
        raise WorkerDiedError(f"the worker {how}: {' '.join(last)}; see {self.log}") from None
