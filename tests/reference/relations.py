"""FedSC and FedPCL from their equations: plain loops over clients, classes and samples, numpy float64.

A client's class means are {class: (vector, number of samples)}; a list holds one such dictionary a client.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Means = dict[int, tuple[Array, int]]
Vectors = dict[int, Array]


def cosine(a: Array, b: Array) -> float:
    """a·b / (|a| |b|)."""
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def softmax(a: Array) -> list[float]:
    """exp(a) / Σ exp(a)."""
    total = sum(math.exp(x) for x in a)
    return [math.exp(x) / total for x in a]


def gap(a: Array, b: Array, middle: Array, likeness: str) -> float:
    """How unlike two clients' prototypes of a class are."""
    if likeness == "angle":
        return abs(cosine(middle, a) - cosine(middle, b))
    if likeness == "cosine":
        return 1 - cosine(a, b)
    if likeness == "l1":
        return sum(abs(x - y) for x, y in zip(a, b, strict=True))
    if likeness == "l2":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    return sum(p * math.log(p / q) for p, q in zip(softmax(a), softmax(b), strict=True))


def relational(clients: list[Means], neighbours: int, likeness: str) -> list[Vectors]:
    """FedSC Eqs. 7-9."""
    related: list[Vectors] = [{} for _ in clients]
    for c in {c for client in clients for c in client}:
        holders = [k for k, client in enumerate(clients) if c in client]
        middle = np.mean([clients[k][c][0] for k in holders], axis=0)
        for k in holders:
            own = clients[k][c][0]
            others = sorted(
                (j for j in holders if j != k), key=lambda j: gap(own, clients[j][c][0], middle, likeness)
            )
            merged = [own] + [clients[j][c][0] for j in others[:neighbours]]
            related[k][c] = sum(merged, np.zeros(len(own))) / len(merged)
    return related


def discrepancy(clients: list[Means], classes: int) -> list[float]:
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


def consistent(clients: list[Means], related: list[Vectors], classes: int, weighting: str) -> Vectors:
    """FedSC Eq. 12, over the holders of a class."""
    e = discrepancy(clients, classes) if weighting == "discrepancy" else [1.0] * len(clients)
    result: Vectors = {}
    for c in {c for client in clients for c in client}:
        holders = [k for k, client in enumerate(clients) if c in client]
        total = sum(e[k] for k in holders)
        result[c] = sum((e[k] / total * related[k][c] for k in holders), np.zeros(1))
    return result


def mean_distance(samples: Array, r: Array) -> float:
    """FedSC Eq. 13's U."""
    return sum(float(np.linalg.norm(z - r)) for z in samples) / len(samples)


def rpcl(z: Array, y: int, related: list[Vectors], scale: list[dict[int, float]], temperature: float) -> float:
    """FedSC Eq. 14, with U of each prototype; 0 for a class that nobody sent."""
    if not any(y in client for client in related):
        return 0.0
    scores = [
        (c, cosine(z, r) / u[c] / temperature)
        for client, u in zip(related, scale, strict=True)
        for c, r in client.items()
    ]
    top = max(score for _, score in scores)
    positive = [math.exp(score - top) for c, score in scores if c == y]
    return -math.log(sum(positive) / sum(math.exp(score - top) for _, score in scores))


def cpdr(z: Array, y: int, prototypes: Vectors) -> float:
    """FedSC's regulariser as the mean of squares."""
    if y not in prototypes:
        return 0.0
    return sum((a - b) ** 2 for a, b in zip(z, prototypes[y], strict=True)) / len(z)


def unit(z: Array) -> Array:
    """z / |z|."""
    return z / math.sqrt(float(z @ z))


def global_means(clients: list[Vectors]) -> Vectors:
    """FedPCL's server: the plain mean over holders."""
    classes = {c for client in clients for c in client}
    return {c: np.mean([client[c] for client in clients if c in client], axis=0) for c in classes}


def padded(clients: list[Vectors]) -> list[Vectors]:
    """FedPCL: a class that a client lacks is the mean's."""
    mean = global_means(clients)
    return [{c: client.get(c, mean[c]) for c in mean} for client in clients]


def _entropy(z: Array, y: int, prototypes: Vectors, temperature: float) -> float:
    if y not in prototypes:
        return 0.0
    scores = {c: float(z @ u) / temperature for c, u in prototypes.items()}
    top = max(scores.values())
    return top + math.log(sum(math.exp(score - top) for score in scores.values())) - scores[y]


def fedpcl_paper(features: Array, labels: list[int], clients: list[Vectors], temperature: float) -> list[float]:
    """L_g + L_p of each sample."""
    mean, sets = global_means(clients), padded(clients)
    losses = []
    for z, y in zip(features, labels, strict=True):
        own = sum(_entropy(unit(z), y, one, temperature) for one in sets) / len(sets)
        losses.append(_entropy(unit(z), y, mean, temperature) + own)
    return losses


def fedpcl_code(features: Array, labels: list[int], clients: list[Vectors], temperature: float) -> list[float]:
    """The public code's loss of each position, with one view: the prototype is the anchor, the batch the contrast."""
    losses = []
    for b, y in enumerate(labels):
        total = 0.0
        for one in padded(clients):
            others = [a for a in range(len(labels)) if a != b]
            positives = [a for a in others if labels[a] == y]
            if y not in one or not positives:
                continue
            scores = {a: float(one[y] @ unit(features[a])) / temperature for a in others}
            top = max(scores.values())
            everyone = top + math.log(sum(math.exp(score - top) for score in scores.values()))
            total += sum(everyone - scores[p] for p in positives) / len(positives)
        losses.append(total)
    return losses
