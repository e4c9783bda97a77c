"""A slow, obvious FedPAC: loops over clients and classes, and every set of clients that a head may be mixed of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


def statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, float]:
    """One client's h [C, D] and v, from its classes' parts, means and second moments."""
    real = [(z, int(y)) for z, y in zip(features, labels, strict=True) if y >= 0]
    h, v = torch.zeros(classes, features.shape[-1], dtype=features.dtype), 0.0
    for c in range(classes):
        own = [z for z, y in real if y == c]
        if own:
            part, mean = len(own) / len(real), torch.stack(own).sum(0) / len(own)
            h[c] = part * mean
            v += part * float(torch.stack([(z * z).sum() for z in own]).mean()) - part**2 * float((mean * mean).sum())
    return h, v / len(real)


def mixture(h: Sequence[Tensor], v: Sequence[float], mine: int, smallest: float = 1e-3) -> Array:
    """The best convex combination: of each set of clients the stationary point, if it is one; then the best of them."""
    number = len(h)
    problem = np.diag(np.array(v, dtype=np.float64))
    for j in range(number):
        for k in range(number):
            problem[j, k] += float(((h[mine] - h[j]) * (h[mine] - h[k])).sum())
    best, least = np.zeros(number), np.inf
    for size in range(1, number + 1):
        for some in combinations(range(number), size):
            part = np.linalg.lstsq(problem[np.ix_(some, some)], np.ones(size), rcond=None)[0]
            if part.sum() <= 0 or (part < -1e-9 * np.abs(part).max()).any():
                continue
            alpha = np.zeros(number)
            alpha[list(some)] = part / part.sum()
            if (value := float(alpha @ problem @ alpha)) < least - 1e-12:
                best, least = alpha, value
    best = np.where(best > smallest, best, 0.0)
    kept: Array = best / best.sum()
    return kept


def mix(heads: Sequence[Mapping[str, Tensor]], parts: Array) -> dict[str, Tensor]:
    """Σ_j α_j w_j."""
    return {
        name: sum((float(a) * head[name] for a, head in zip(parts, heads, strict=True)), torch.zeros_like(first))
        for name, first in heads[0].items()
    }
