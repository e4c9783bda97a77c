"""Several runs as one data frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.internal.frames import data_frame
from protofed.runs.result import OF_ROUND, Result

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("seed", "round", "client", "score", "accuracy", *OF_ROUND)


def frame_of(
    results: Sequence[Result], settings: Sequence[Mapping[str, Any]] | None = None, varied: Sequence[str] = ()
) -> DataFrame:
    """A row for each run's evaluated round, client and score.

    Args:
        results: the runs.
        settings: of each run, what was varied; a name that does not concern the method is missing.
        varied: all names that were, which are columns.
    """
    rows = (
        {"method": result.method, **setting, "seed": result.seed, **row}
        for result, setting in zip(results, settings or [{}] * len(results), strict=True)
        for row in result.rows()
    )
    return data_frame(rows, ["method", *varied, *COLUMNS])
