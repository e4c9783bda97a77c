"""How much clients count by their class means, number by number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

Mean = tuple[Sequence[float], float]  # a class's mean feature, and of how many samples


def shares(samples: Sequence[float], means: Sequence[Mapping[int, Mean]]) -> list[float]:
    """n_k exp(−d_k / d̄), client by client; who sends no mean counts as if at d̄."""
    common: dict[int, list[float]] = {}
    for label in {label for one in means for label in one}:
        holders = [one[label] for one in means if label in one]
        number = sum(Fraction(count) for _, count in holders)  # exact: the mean of equal numbers is none other
        columns = zip(*[[Fraction(count) * Fraction(x) for x in vector] for vector, count in holders], strict=True)
        common[label] = [float(sum(column) / number) for column in columns]
    d: list[float | None] = []
    for one in means:
        held = sum(count for _, count in one.values())
        d.append(sum(n * math.dist(v, common[label]) for label, (v, n) in one.items()) / held if one else None)
    known = [value for value in d if value is not None]
    middle = sum(known) / len(known) if known else 0.0
    if middle == 0:
        return list(samples)
    return [n * math.exp(-(middle if value is None else value) / middle) for n, value in zip(samples, d, strict=True)]
