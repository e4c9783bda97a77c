"""A number over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread"]


@dataclass(frozen=True)
class Spread:
    """Record a number over seeds.

    Args:
        mean: the mean.
        std: the sample standard deviation; None for a single value, which has none.
        values: the number for each seed.

    Example:
        >>> from protofed.studies.spread import Spread
        >>> Spread.of([90.0, 92.0, 94.0])
        Spread(mean=92.0, std=2.0, values=[90.0, 92.0, 94.0])
        >>> Spread.of([90.0, 92.0, 94.0]).text(1), Spread.of([90.0]).text(1)
        ('92.0±2.0', '90.0')
    """

    mean: float
    std: float | None
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute mean and standard deviation of some values; a single value has no deviation."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, list(values))

    def text(self, digits: int) -> str:
        """Say it in the cell of a table: the mean, and the deviation if there is one."""
        return f"{self.mean:.{digits}f}" + ("" if self.std is None else f"±{self.std:.{digits}f}")
