"""A slow, obvious FedNCM: all data in one place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def head(clients: Sequence[tuple[Array, NDArray[np.int64]]], classes: int) -> tuple[Array, Array]:
    """The direction of each class's mean; zeros for a class without samples."""
    size = clients[0][0].shape[1]
    weight = np.zeros((classes, size))
    for c in range(classes):
        mine = [z for features, labels in clients for z, y in zip(features, labels, strict=True) if y == c]
        if mine:
            mean = np.sum(mine, axis=0) / len(mine)
            weight[c] = mean / np.sqrt((mean * mean).sum())
    return weight, np.zeros(classes)
