"""FedETF's frame, head and loss, number by number."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.reference.fedrod import balanced
from tests.reference.plain_rounds import Moment, Term


def frame(classes: int) -> list[list[float]]:
    """V = √(C/(C−1)) (I − 11ᵀ/C), entry by entry."""
    scale = math.sqrt(classes / (classes - 1))
    return [[scale * ((i == j) - 1 / classes) for j in range(classes)] for i in range(classes)]


def logits(z: Tensor, weight: Tensor, bias: Tensor, scale: float) -> list[float]:
    """β times the cosine of the projected feature with every class vector."""
    projected = [sum(float(w) * float(x) for w, x in zip(row, z, strict=True)) for row in weight]
    projected = [value + float(b) for value, b in zip(projected, bias, strict=True)]
    length = math.sqrt(sum(value**2 for value in projected)) or 1.0
    vectors = frame(len(bias))
    found = []
    for c in range(len(bias)):
        dot = sum(value * vectors[i][c] for i, value in enumerate(projected))
        found.append(scale * dot / length)
    return found


def fedetf_term(gamma: float) -> Term:
    """What is added to the mean cross-entropy."""

    def term(moment: Moment) -> Tensor:
        found: Tensor = moment.module(moment.x).logits
        counts = moment.data.counts(found.shape[1])
        return balanced(found, moment.y.tolist(), counts, gamma).mean() - cross_entropy(found, moment.y)

    return term


def sums_to_nothing(vectors: Tensor) -> bool:
    """Whether the class vectors balance each other."""
    return bool(torch.allclose(vectors.sum(1), torch.zeros(len(vectors), dtype=vectors.dtype), atol=1e-6))
