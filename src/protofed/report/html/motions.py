"""The motion of the lines of a page: a run of each, with the curve of the accuracy that all have."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from protofed.report.html.run_data import Lines, shared_score
from protofed.report.index import version_of
from protofed.report.motion import MovingLine, gather_motion
from protofed.runs.folder import RunFolder


def motions_of(lines: Lines) -> dict[str, Any] | None:
    """What `gather_motion` finds of the first run of each line that has kept something.

    Args:
        lines: the runs that are drawn.

    Returns:
        Plain data; None where no run has kept anything.

    Raises:
        UserError: a file of it is damaged.
    """
    score = shared_score(lines)
    told = []
    for label, runs in lines.items():
        run = next((run for run in runs if RunFolder(run["path"]).motion.is_file()), None)
        if run is not None:
            name = score if score in run["curves"] else run["score"]
            values = tuple(run["curves"].get(name, []))
            told.append(MovingLine(label, run["path"], name, tuple(run["tested"]), values))
    return _gathered(tuple(told), tuple(version_of(line.folder) for line in told))


@lru_cache(maxsize=8)
def _gathered(lines: tuple[MovingLine, ...], versions: tuple[str, ...]) -> dict[str, Any] | None:  # noqa: ARG001
    """Remembered while no file of a run changes."""
    return gather_motion(lines)
