"""Slow, obvious versions of everything in protofed.prototypes: plain loops over clients, classes and samples.

Arrays are numpy, float64. Prototypes are a dictionary {class: [vectors]}, and a pool is a list of those, one a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from protofed.prototypes import Prototypes
from protofed.randomness import uniform

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Sets = dict[int, list[Array]]


def as_sets(prototypes: Prototypes) -> Sets:
    """One client's dense prototypes, [C, M, D], as a dictionary of lists."""
    sets: Sets = {}
    for c in range(prototypes.counts.shape[0]):
        for m in range(prototypes.counts.shape[1]):
            if prototypes.counts[c, m] > 0:
                sets.setdefault(c, []).append(prototypes.vectors[c, m].double().numpy())
    return sets


def cosine(a: Array, b: Array) -> float:
    """a·b / (|a| |b|); 0 for a zero vector."""
    return float(a @ b / (max(float(np.linalg.norm(a)), 1e-8) * max(float(np.linalg.norm(b)), 1e-8)))


def cross_entropy(logits: dict[int, float], label: int) -> float:
    """−log softmax at the label."""
    top = max(logits.values())
    return top + math.log(sum(math.exp(x - top) for x in logits.values())) - logits[label]


def slot_contrast(features: Array, labels: Labels, pool: Prototypes, temperature: float) -> list[float]:
    """MP-FedCL Eq. 11 with P(y) = {y}: the mean over (i, k) of a cross-entropy over classes."""
    losses = []
    clients, classes, slots = pool.counts.shape
    for z, y in zip(features, labels, strict=True):
        terms = []
        for i in range(clients):
            for k in range(slots):
                logits = {
                    c: cosine(z, pool.vectors[i, c, k].double().numpy()) / temperature
                    for c in range(classes)
                    if pool.counts[i, c, k] > 0
                }
                if int(y) in logits:
                    terms.append(cross_entropy(logits, int(y)))
        losses.append(sum(terms) / len(terms) if terms else 0.0)
    return losses


def pooled_contrast(features: Array, labels: Labels, pool: Sets, temperature: float) -> list[float]:
    """DP-FedCL: −1/|P(y)| Σ_p [v·u_p/τ − log Σ_a exp(v·u_a/τ)]."""
    losses = []
    for z, y in zip(features, labels, strict=True):
        everyone = [cosine(z, u) / temperature for us in pool.values() for u in us]
        positives = [cosine(z, u) / temperature for u in pool.get(int(y), [])]
        if not positives:
            losses.append(0.0)
            continue
        top = max(everyone)
        lse = top + math.log(sum(math.exp(x - top) for x in everyone))
        losses.append(-sum(p - lse for p in positives) / len(positives))
    return losses


def class_means(features: Array, labels: Labels) -> dict[int, tuple[Array, int]]:
    """Each class's mean and number of samples, for one client."""
    groups: dict[int, list[Array]] = {}
    for z, y in zip(features, labels, strict=True):
        if y >= 0:
            groups.setdefault(int(y), []).append(z)
    return {c: (np.mean(rows, axis=0), len(rows)) for c, rows in groups.items()}


def mean_over_holders(clients: list[dict[int, tuple[Array, int]]], weighting: str) -> dict[int, Array]:
    """FedProto Eq. 6 and its two saner readings."""
    result = {}
    for c in {c for client in clients for c in client}:
        held = [client[c] for client in clients if c in client]
        total = sum(n for _, n in held)
        if weighting == "uniform":
            result[c] = sum((v for v, _ in held), np.zeros(1)) / len(held)
        else:
            result[c] = sum((v * n / total for v, n in held), np.zeros(1))
            if weighting == "literal":
                result[c] = result[c] / len(held)
    return result


def pad_with_class_mean(pool: list[Sets], k: int) -> list[Sets]:
    """MP-FedCL Eq. 10."""
    padded: list[Sets] = [{} for _ in pool]
    for c in {c for client in pool for c in client}:
        everyone = [u for client in pool for u in client.get(c, [])]
        for client, target in zip(pool, padded, strict=True):
            own = client.get(c, [])
            target[c] = own if len(own) == k else [np.mean(everyone, axis=0)] * k
    return padded


def nearest_class(features: Array, prototypes: Sets, allowed: set[int] | None = None) -> list[int]:
    """The argmin over classes of the least distance to one of their prototypes."""
    answers = []
    for z in features:
        best, answer = math.inf, -1
        for c in sorted(prototypes):
            if allowed is not None and c not in allowed:
                continue
            for u in prototypes[c]:
                if np.linalg.norm(z - u) < best:
                    best, answer = float(np.linalg.norm(z - u)), c
        answers.append(answer)
    return answers


def random_starts(points: Array, k: int, client_key: int, label: int, restarts: int) -> list[list[Array]]:
    """For each restart the k points with the highest scores; scores are hashes of (client, class, rank, restart)."""
    class_key = (uniform(torch.tensor([client_key]), -1, (label + 1,))[0, label] * 2**32).long()
    scores = uniform(class_key.view(1), 0, (len(points), restarts))[0]
    return [[points[i] for i in sorted(range(len(points)), key=lambda i: -scores[i, r])[:k]] for r in range(restarts)]


def lloyd(
    points: Array, weights: Array, starts: list[Array], iterations: int, tolerance: float
) -> tuple[float, list[list[int]]]:
    """Lloyd's algorithm from given starts: its inertia and its clusters as lists of ranks."""

    def assign() -> list[list[int]]:
        groups: list[list[int]] = [[] for _ in centres]
        for i, x in enumerate(points):
            groups[int(np.argmin([np.linalg.norm(x - c) for c in centres]))].append(i)
        return groups

    centres = list(starts)
    for _ in range(iterations):
        moved = [
            np.average(points[g], axis=0, weights=weights[g]) if g else c
            for g, c in zip(assign(), centres, strict=True)
        ]
        shift = max(np.linalg.norm(a - b) for a, b in zip(moved, centres, strict=True))
        centres = moved
        if shift <= tolerance:
            break
    groups = assign()
    inertia = sum(
        float(weights[i] * np.sum((points[i] - c) ** 2)) for g, c in zip(groups, centres, strict=True) for i in g
    )
    return inertia, groups


def kmeans(
    points: Array,
    k: int,
    client_key: int,
    label: int,
    restarts: int = 5,
    iterations: int = 100,
    tolerance: float = 1e-4,
    weights: Array | None = None,
) -> list[list[int]]:
    """The clusters, as lists of ranks in order of their first members, of the best of several random starts."""
    counts = np.ones(len(points)) if weights is None else weights
    starts = random_starts(points, k, client_key, label, restarts)
    runs = [lloyd(points, counts, start, iterations, tolerance) for start in starts]
    least = min(inertia for inertia, _ in runs)
    best = next(groups for inertia, groups in runs if inertia <= least * (1 + 1e-6))
    return sorted(g for g in best if g)


METRICS: dict[str, Callable[[Array, Array], float]] = {
    "mse": lambda a, b: sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a),
    "l2": lambda a, b: math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True))),
    "l1": lambda a, b: sum(abs(x - y) for x, y in zip(a, b, strict=True)),
    "emd": lambda a, b: sum(abs(x - y) for x, y in zip(sorted(a), sorted(b), strict=True)) / len(a),
}


def distance(features: Array, labels: Labels, prototypes: Sets, metric: str) -> list[float]:
    """FedProto's term sample by sample: the distance to the only prototype of the own class, 0 without one."""
    return [
        METRICS[metric](z, prototypes[int(y)][0]) if int(y) in prototypes else 0.0
        for z, y in zip(features, labels, strict=True)
    ]


def prototype_distance(features: Array, labels: Labels, prototypes: Sets, metric: str) -> float:
    """FedProto Eq. 8: the sum over classes of the distance between the batch's mean and the prototype."""
    own = class_means(features, labels)
    return sum(METRICS[metric](own[c][0], prototypes[c][0]) for c in own if c in prototypes)
