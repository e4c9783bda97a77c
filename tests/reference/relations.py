"""FedSC and FedPCL from their equations: plain loops over clients, classes and samples.

A client's class means are {class: (vector, number of samples)}, its prototypes {class: vector}; a list holds one such
dictionary a client. Losses are one number per sample and can be differentiated.
"""

from __future__ import annotations

import math
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


def mean(vectors: Sequence[Tensor]) -> Tensor:
    """The plain mean."""
    return sum(vectors, torch.zeros_like(vectors[0])) / len(vectors)


def class_means(features: Tensor, labels: Sequence[int]) -> Means:
    """Each class's mean and number of samples."""
    found: dict[int, list[Tensor]] = {}
    for z, y in zip(features, labels, strict=True):
        found.setdefault(y, []).append(z)
    return {c: (mean(rows), len(rows)) for c, rows in found.items()}


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


def global_means(clients: Sequence[Vectors]) -> Vectors:
    """FedPCL's server: the plain mean over holders."""
    classes = {c for client in clients for c in client}
    return {c: mean([client[c] for client in clients if c in client]) for c in classes}


def padded(clients: Sequence[Vectors]) -> list[Vectors]:
    """FedPCL: a class that a client lacks is the mean's."""
    average = global_means(clients)
    return [{c: client.get(c, average[c]) for c in average} for client in clients]


def class_entropy(z: Tensor, y: int, prototypes: Vectors, temperature: float) -> Tensor:
    """Cross-entropy over classes of the scores z·u/τ, z of unit length."""
    if y not in prototypes:
        return ZERO
    scores = {c: (z / length(z) * u).sum() / temperature for c, u in prototypes.items()}
    return log_sum_exp(list(scores.values())) - scores[y]


def fedpcl_paper(features: Tensor, labels: Sequence[int], clients: Sequence[Vectors], temperature: float) -> Tensor:
    """L_g + L_p of each sample."""
    average, sets = global_means(clients), padded(clients)
    losses = []
    for z, y in zip(features, labels, strict=True):
        personal = sum((class_entropy(z, y, one, temperature) for one in sets), ZERO) / len(sets)
        losses.append(class_entropy(z, y, average, temperature) + personal)
    return torch.stack(losses)


def fedpcl_code(features: Tensor, labels: Sequence[int], clients: Sequence[Vectors], temperature: float) -> Tensor:
    """The public code's loss of each position, with one view: the prototype is the anchor, the batch the contrast."""
    losses = []
    for b, y in enumerate(labels):
        total = ZERO
        for one in padded(clients):
            others = [a for a in range(len(labels)) if a != b]
            positives = [a for a in others if labels[a] == y]
            if y not in one or not positives:
                continue
            scores = {a: (one[y] * features[a] / length(features[a])).sum() / temperature for a in others}
            everyone = log_sum_exp(list(scores.values()))
            total = total + sum((everyone - scores[p] for p in positives), ZERO) / len(positives)
        losses.append(total)
    return torch.stack(losses)
