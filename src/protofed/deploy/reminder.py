"""What ends soon is said when a process starts and once a day while it runs, which may be for a year."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from protofed.deploy.events import Events
from protofed.errors import UserError

DAY = 86_400.0
"""Seconds."""


class Reminder:
    """Says what ends soon, and records it.

    Args:
        lines: about what ends soon, as it is now.
        say: where a line is said.
        events: where it is recorded.
        clock: seconds.
    """

    def __init__(
        self,
        lines: Callable[[], Sequence[str]],
        say: Callable[[str], None],
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lines, self.say, self.events, self.clock = lines, say, events, clock
        self._next = -math.inf

    def look(self) -> None:
        """Say it, unless a day has not gone by since."""
        now = self.clock()
        if now < self._next:
            return
        self._next = now + DAY
        with suppress(UserError, OSError):  # a certificate that is just being replaced: tomorrow is in time
            for line in self.lines():
                self.say(line)
                self.events.write(kind="certificate.ends", why=line)
