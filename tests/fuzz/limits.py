"""Time and memory that a reader may take."""

from __future__ import annotations

import faulthandler
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LONGEST = 20
"""Seconds for the files of one reader; valid ones take less than one."""
MOST = 2**30
"""Bytes beyond what the process has before."""


class HungError(BaseException):
    """Not an Exception: readers that catch whatever a decoder raises must not catch this."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise if what is done within takes too long, and let it have no more memory than it may."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST, before[1]))
    handler = signal.signal(signal.SIGALRM, _hung)
    signal.alarm(LONGEST)
    faulthandler.dump_traceback_later(2 * LONGEST, exit=True)  # where Python code does not get to run
    try:
        yield
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _hung(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise HungError(f"more than {LONGEST} s")
