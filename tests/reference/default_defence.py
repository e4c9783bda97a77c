"""The default defence's margins by their definition: slow, one number at a time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Vector = Sequence[float]


def _cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


def margins(rows: Sequence[Vector], copies: float, turned: float, trusted: Sequence[int]) -> list[float]:
    """By how much each row's cosine with the sum of the others' unit vectors is above their median, or `turned`."""
    pairs = [_cosine(row, other) for k, row in enumerate(rows) for j, other in enumerate(rows) if j != k]
    usual, votes = 1 - statistics.median_low(pairs), []
    for k, row in enumerate(rows):
        apart = [1 - _cosine(row, other) for j, other in enumerate(rows) if j != k]
        near = sum(max(0.0, 1 - one / (copies * usual)) for one in apart)
        votes.append(float(k in trusted) if trusted else 1 / (1 + near))
    cosines = []
    for k, row in enumerate(rows):
        total = [0.0] * len(row)
        for j, other in enumerate(rows):
            if j != k:
                total = [a + votes[j] * b / math.hypot(*other) for a, b in zip(total, other, strict=True)]
        cosines.append(_cosine(row, total) if math.hypot(*total) > 1e-9 else 0.0)
    middle = turned if trusted else statistics.median_low(cosines)
    return [1.0 if k in trusted else cosine - middle for k, cosine in enumerate(cosines)]
