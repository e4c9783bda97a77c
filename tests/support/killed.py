"""A run whose process ends in the middle, as it were."""

from __future__ import annotations

from typing import Any

from protofed.runs.progress import Progress
from protofed.runs.run import Run


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library catches it."""


class KillAfter(Progress):
    """Ends the process, as it were, at the end of a round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def advance(self, run: Run, line: dict[str, Any]) -> None:  # noqa: ARG002
        """A round is over."""
        if line["round"] == self.rounds:
            raise Killed
