"""Robust aggregation as its papers write it: slow, one number at a time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

Vector = Sequence[float]


def coordinate_median(rows: Sequence[Vector]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def trimmed_mean(rows: Sequence[Vector], feared: float) -> list[float]:
    cut = min(math.ceil(feared * len(rows)), (len(rows) - 1) // 2)
    return [statistics.fmean(sorted(column)[cut : len(rows) - cut]) for column in zip(*rows, strict=True)]


def distance(one: Vector, other: Vector) -> float:
    return math.dist(one, other)


def sum_of_distances(point: Vector, rows: Sequence[Vector]) -> float:
    return sum(distance(point, row) for row in rows)


def krum_scores(rows: Sequence[Vector], feared: float) -> list[float]:
    near = max(1, len(rows) - math.ceil(feared * len(rows)) - 2)
    scores = []
    for k, row in enumerate(rows):
        others = sorted(distance(row, other) ** 2 for j, other in enumerate(rows) if j != k)
        scores.append(sum(others[:near]))
    return scores


def norm_clip(rows: Sequence[Vector]) -> list[list[float]]:
    lengths = [math.hypot(*row) for row in rows]
    limit = sorted(lengths)[(len(lengths) - 1) // 2]  # the lower of two in the middle
    return [
        [value * min(1.0, limit / length) if length else value for value in row]
        for row, length in zip(rows, lengths, strict=True)
    ]


def unlike(rows: Sequence[Vector], angle: float, factor: float) -> list[bool]:
    """Which rows point elsewhere than the coordinate median, or are longer or shorter, than three deviations allow."""
    middle = coordinate_median(rows)
    cosines = [_cosine(row, middle) for row in rows]
    lengths = [math.log(max(math.hypot(*row), 1e-300)) for row in rows]
    turned = [_lower(cosines) - cosine for cosine in cosines]
    stretched = [abs(length - _lower(lengths)) for length in lengths]
    limits = (
        max(angle, 3 * 1.4826 * _lower([abs(value) for value in turned])),
        max(math.log(factor), 3 * 1.4826 * _lower(stretched)),
    )
    return [t > limits[0] or s > limits[1] for t, s in zip(turned, stretched, strict=True)]


def _lower(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths if lengths else 0.0
