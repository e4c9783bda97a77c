"""FedSC is here from its equations: plain loops over clients, classes and samples.

Losses are one number per sample and can be differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tests.reference.class_vectors import ZERO, Means, Vectors, cosine, length, log_sum_exp, mean


def softmax(a: Tensor) -> list[float]:
    """exp(a) / Σ exp(a)."""
    total = sum(math.exp(x) for x in a.tolist())
    return [math.exp(x) / total for x in a.tolist()]


def gap(a: Tensor, b: Tensor, middle: Tensor, likeness: str) -> float:
    """How unlike two clients' prototypes of a class are."""
    if likeness == "angle":
        return abs(float(cosine(middle, a)) - float(cosine(middle, b)))
    if likeness == "cosine":
        return 1 - float(cosine(a, b))
    if likeness == "l1":
        return float(sum(abs(x - y) for x, y in zip(a.tolist(), b.tolist(), strict=True)))
    if likeness == "l2":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)))
    return sum(p * math.log(p / q) for p, q in zip(softmax(a), softmax(b), strict=True))


def relational(clients: Sequence[Means], neighbours: int, likeness: str) -> list[Vectors]:
    """FedSC Eqs. 7-9."""
    related: list[Vectors] = [{} for _ in clients]
    for c in {c for client in clients for c in client}:
        holders = [k for k, client in enumerate(clients) if c in client]
        middle = mean([clients[k][c][0] for k in holders])
        for k in holders:
            own = clients[k][c][0]
            by_gap = {j: gap(own, clients[j][c][0], middle, likeness) for j in holders if j != k}
            nearest = sorted(by_gap, key=by_gap.__getitem__)[:neighbours]
            related[k][c] = mean([own] + [clients[j][c][0] for j in nearest])
    return related


def discrepancy(clients: Sequence[Means], classes: int) -> list[float]:
    """FedSC Eqs. 10-11 before they are normalised: σ(n_k/N − d_k/Σd)."""
    sizes, d = [], []
    for client in clients:
        n = sum(number for _, number in client.values())
        squares = 0.0
        for c in range(classes):
            share = client[c][1] / n if c in client else 0.0
            squares += (share - 1 / classes) ** 2
        sizes.append(n)
        d.append(math.sqrt(squares / 2))
    arguments = [n / sum(sizes) - (x / sum(d) if sum(d) > 0 else 0) for n, x in zip(sizes, d, strict=True)]
    return [1 / (1 + math.exp(-x)) for x in arguments]


def consistent(clients: Sequence[Means], related: Sequence[Vectors], classes: int, weighting: str) -> Vectors:
    """FedSC Eq. 12, over the holders of a class."""
    e = discrepancy(clients, classes) if weighting == "discrepancy" else [1.0] * len(clients)
    result: Vectors = {}
    for c in {c for client in clients for c in client}:
        holders = [k for k, client in enumerate(clients) if c in client]
        total = sum(e[k] for k in holders)
        result[c] = sum((e[k] / total * related[k][c] for k in holders), ZERO)
    return result


def scales(samples: Sequence[Tensor], related: Sequence[Vectors]) -> list[dict[int, float]]:
    """FedSC Eq. 13's U of each prototype."""
    return [
        {c: max(1e-3, sum(float(length(z - r)) for z in samples) / len(samples)) for c, r in client.items()}
        for client in related
    ]


def rpcl(
    z: Tensor, y: int, related: Sequence[Vectors], scale: Sequence[dict[int, float]] | None, temperature: float
) -> Tensor:
    """FedSC Eq. 14; U is 1 without `scale`. 0 for a class that nobody sent."""
    if not any(y in client for client in related):
        return ZERO
    scores: list[tuple[int, Tensor]] = []
    for k, client in enumerate(related):
        for c, r in client.items():
            u = 1.0 if scale is None else scale[k][c]
            scores.append((c, cosine(z, r) / u / temperature))
    return log_sum_exp([s for _, s in scores]) - log_sum_exp([s for c, s in scores if c == y])


def cpdr(z: Tensor, y: int, prototypes: Vectors) -> Tensor:
    """FedSC's regulariser as the mean of squares."""
    if y not in prototypes:
        return ZERO
    return sum(((a - b) ** 2 for a, b in zip(z, prototypes[y], strict=True)), ZERO) / len(z)
