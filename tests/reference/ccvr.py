"""A slow, obvious CCVR: each client's class means and covariances, and the paper's formula that combines them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Client = tuple[Array, NDArray[np.int64]]  # features [n, D] and labels [n]


def local(client: Client, c: int) -> tuple[int, Array, Array]:
    """How many samples of the class, their mean and covariance; 0 of a single sample."""
    features, labels = client
    own = [z for z, y in zip(features, labels, strict=True) if y == c]
    size = features.shape[1]
    if not own:
        return 0, np.zeros(size), np.zeros((size, size))
    mean = np.sum(own, axis=0) / len(own)
    scatter = np.zeros((size, size))
    for z in own:
        scatter += np.outer(z - mean, z - mean)
    return len(own), mean, scatter / max(1, len(own) - 1)


def combined(clients: Sequence[Client], c: int) -> tuple[int, Array, Array]:
    """The same of all clients, from what each says of itself."""
    found = [local(client, c) for client in clients]
    number = sum(n for n, _, _ in found)
    size = clients[0][0].shape[1]
    mean, covariance = np.zeros(size), np.zeros((size, size))
    for n, mu, _ in found:
        mean += n / max(1, number) * mu
    if number > 1:
        for n, mu, sigma in found:
            covariance += max(0, n - 1) / (number - 1) * sigma + n / (number - 1) * np.outer(mu, mu)
        covariance -= number / (number - 1) * np.outer(mean, mean)
    return number, mean, covariance
