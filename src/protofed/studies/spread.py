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
        std: the sample standard deviation; 0 for a single value.
        values: the number for each seed.

    Example:
        >>> from protofed.studies.spread import Spread
        >>> Spread.of([90.0, 92.0, 94.0])
        Spread(mean=92.0, std=2.0, values=[90.0, 92.0, 94.0])
    """

    mean: float
    std: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute mean and standard deviation of some values; the deviation of a single value is 0."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, list(values))
