"""Attacks on averages as their papers write them: slow, one number at a time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

Vector = Sequence[float]
Total = Callable[[Iterable[float]], float]


def alie(rows: Sequence[Vector], attackers: int) -> list[float]:
    """Algorithm 3: z is the largest with Φ(z) < (n − m − s) / (n − m); between the median and the 99th percentile."""
    n, m = len(rows) + attackers, attackers
    s = n // 2 + 1 - m
    share = min(max((n - m - s) / (n - m), 0.5), 0.99)
    z = statistics.NormalDist().inv_cdf(share)
    return [statistics.fmean(column) - z * statistics.pstdev(column) for column in zip(*rows, strict=True)]


def distance(point: Vector, rows: Sequence[Vector], total: Total) -> float:
    """The largest squared distance to honest vectors, or their sum."""
    return total(math.dist(point, row) ** 2 for row in rows)


def spread(rows: Sequence[Vector], total: Total) -> float:
    """The most that any honest vector has of this."""
    return max(distance(row, rows, total) for row in rows)
