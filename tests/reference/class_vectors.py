"""What slow versions of FedSC and FedPCL share: vectors of classes, client by client.

A client's class means are {class: (vector, number of samples)}, its prototypes {class: vector}; a list holds one such
dictionary a client.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Means = dict[int, tuple[Tensor, int]]
Vectors = dict[int, Tensor]
ZERO = torch.zeros((), dtype=torch.float64)


def length(a: Tensor) -> Tensor:
    """|a|."""
    return (a * a).sum().sqrt()


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a·b / (|a| |b|)."""
    return (a * b).sum() / (length(a) * length(b))


def log_sum_exp(values: Sequence[Tensor]) -> Tensor:
    """The logarithm of the sum of exponentials."""
    top = max(float(value.detach()) for value in values)
    return top + sum(((value - top).exp() for value in values), ZERO).log()


def mean(vectors: Sequence[Tensor]) -> Tensor:
    """The plain mean."""
    return sum(vectors, torch.zeros_like(vectors[0])) / len(vectors)


def class_means(features: Tensor, labels: Sequence[int]) -> Means:
    """Each class's mean and number of samples."""
    found: dict[int, list[Tensor]] = {}
    for z, y in zip(features, labels, strict=True):
        found.setdefault(y, []).append(z)
    return {c: (mean(rows), len(rows)) for c, rows in found.items()}
