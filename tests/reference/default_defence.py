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


def lost_agreement(
    before: Sequence[Sequence[Vector]],
    after: Sequence[Sequence[Vector]],
    first: Sequence[int],
    second: Sequence[int],
    then: Sequence[float],
    now: Sequence[float],
) -> dict[int, float]:
    """How much less the clients of one round agree with those of the next, above the median, by client.

    Args:
        before: updates by layer and client; layers count alike.
        after: those of the next round.
        first: the clients of `before`.
        second: those of `after`.
        then: how far the first are believed.
        now: how far the second are believed.
    """

    def agreement(one: int, others: Sequence[Sequence[Vector]], who: Sequence[int], voices: Sequence[float]) -> float:
        total = weight = 0.0
        for k, (member, voice) in enumerate(zip(who, voices, strict=True)):
            if member != first[one]:
                pairs = zip(before, others, strict=True)
                total += voice * statistics.fmean(_cosine(layer[one], other[k]) for layer, other in pairs)
                weight += voice
        return total / weight

    lost = [agreement(k, before, first, then) - agreement(k, after, second, now) for k in range(len(first))]
    return {member: value - statistics.median_low(lost) for member, value in zip(first, lost, strict=True)}
