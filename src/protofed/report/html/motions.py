"""The motion of the lines of a page: the first run of each, with the curve of the accuracy that all have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofed.report.html.run_data import comparable, read_run
from protofed.report.motion import MovingLine, gather_motion
from protofed.runs.result import common_score


def motions_of(lines: Mapping[str, Sequence[Path]]) -> dict[str, Any] | None:
    """What `gather_motion` finds.

    Args:
        lines: the folders of each line's runs, by its label.

    Returns:
        Plain data; None where no run has kept anything.

    Raises:
        UserError: a file of it is damaged.
    """
    score = common_score([comparable(read_run(path)) for paths in lines.values() for path in paths])
    told = []
    for label, paths in lines.items():
        run = read_run(paths[0])
        name = score if score in run["curves"] else run["score"]
        told.append(MovingLine(label, paths, name, run["tested"], run["curves"].get(name, [])))
    return gather_motion(told)
