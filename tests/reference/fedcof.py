"""A slow, obvious FedCOF: loops over classes and clients, numpy's pseudo-inverse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Clients = Sequence[tuple[Array, NDArray[np.int64]]]


def covariance(means: Sequence[Array], numbers: Sequence[int], gamma: float) -> Array:
    """Of one class, from its holders' means and numbers of samples."""
    size = len(means[0])
    centre = sum((n * mean for mean, n in zip(means, numbers, strict=True)), np.zeros(size)) / sum(numbers)
    scatter = np.zeros((size, size))
    for mean, n in zip(means, numbers, strict=True):
        scatter += n * np.outer(mean - centre, mean - centre)
    return scatter / max(1, len(means) - 1) + gamma * np.eye(size)


def head(clients: Clients, classes: int, gamma: float = 1.0) -> tuple[Array, Array]:
    """G⁻¹ B with rows of length 1."""
    size = clients[0][0].shape[1]
    gram, sums, total, spare = np.zeros((size, size)), np.zeros((classes, size)), 0, 0
    for c in range(classes):
        own = [features[labels == c] for features, labels in clients if (labels == c).any()]
        if own:
            numbers = [len(some) for some in own]
            gram += (sum(numbers) - 1) * covariance([some.mean(0) for some in own], numbers, gamma)
            sums[c] = sum((some.sum(0) for some in own), np.zeros(size))
            total += sum(numbers)
            spare += sum(numbers) - 1
    if not spare:
        gram = np.eye(size)
    mean = sums.sum(0) / total
    gram += total * np.outer(mean, mean)
    weight = (np.linalg.pinv(gram, hermitian=True) @ sums.T).T
    lengths = np.sqrt((weight * weight).sum(1, keepdims=True))
    return weight / np.where(lengths > 0, lengths, 1), np.zeros(classes)
