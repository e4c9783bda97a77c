"""A run whose process ends in the middle, as it were."""

from __future__ import annotations

from protofed.runs.progress import Progress, Standing


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library catches it."""


class KillAfter(Progress):
    """Ends the process, as it were, at the end of a round."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def tell(self, standing: Standing) -> None:
        """A round is over."""
        if standing.done == self.rounds and standing.loss is not None:
            raise Killed
