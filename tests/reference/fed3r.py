"""A slow, obvious Fed3R: ridge regression on all data in one place, as least squares with λ's rows below the data's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def head(
    clients: Sequence[tuple[Array, NDArray[np.int64]]],
    classes: int,
    lam: float = 0.01,
    intercept: bool = True,
    normalise: bool = True,
) -> tuple[Array, Array]:
    """Weights [C, D] and bias [C]: min |ZW − Y|² + λ |W|²."""
    rows, targets = [], []
    for features, labels in clients:
        for z, y in zip(features, labels, strict=True):
            rows.append([*z, 1.0] if intercept else [*z])
            targets.append([1.0 if c == y else 0.0 for c in range(classes)])
    size = len(rows[0])
    design = np.concatenate([np.array(rows), np.sqrt(lam) * np.eye(size)])
    wanted = np.concatenate([np.array(targets), np.zeros((size, classes))])
    found = np.linalg.lstsq(design, wanted, rcond=None)[0].T
    weight, bias = (found[:, :-1], found[:, -1]) if intercept else (found, np.zeros(classes))
    for c in range(classes):
        length = np.sqrt((weight[c] * weight[c]).sum())
        if normalise and any(y == c for _, labels in clients for y in labels):
            weight[c], bias[c] = weight[c] / length, bias[c] / length
    return weight, bias
