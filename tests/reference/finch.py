"""FINCH by union-find, and the losses on its clusters by plain loops: slow, obvious, numpy float64."""

from __future__ import annotations

import math

import numpy as np

from protofed.prototypes import Prototypes
from tests.reference.prototypes import Array, Labels, cosine

Clusters = dict[int, list[tuple[Array, float]]]


def first_neighbour(points: list[Array], i: int) -> int:
    """The other point with the largest cosine; the first of those that differ by no more than rounding."""
    cosines = {j: cosine(points[i], points[j]) for j in range(len(points)) if j != i}
    return min((j for j in cosines if cosines[j] >= max(cosines.values()) - 1e-12), default=i)


def merge(points: list[Array]) -> list[int]:
    """Each point's component under the edges (i, its first neighbour), numbered by first member."""
    parent = list(range(len(points)))

    def find(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    for i in range(len(points)):
        a, b = find(i), find(first_neighbour(points, i))
        parent[max(a, b)] = min(a, b)
    roots = [find(i) for i in range(len(points))]
    return [sorted(set(roots)).index(r) for r in roots]


def hierarchy(points: Array) -> list[list[int]]:
    """The partitions of points without zero rows, finest first, with every stop rule of the original."""
    levels = [merge(list(points))]
    while True:
        last = levels[-1]
        before = max(last) + 1
        merged = merge([points[np.array(last) == g].mean(axis=0) for g in range(before)])
        now = max(merged) + 1
        if now == 1 or now >= before:
            return levels
        levels.append([merged[g] for g in last])
        if before - now <= 1:
            return levels


def finch(points: Array, weights: Array, weighted: bool) -> list[tuple[Array, float]]:
    """The last partition's centroids and total weights; nothing but zero rows makes one zero prototype."""
    kept = [i for i in range(len(points)) if points[i].any()]
    if not kept:
        return [(np.zeros(points.shape[1]), float(weights.sum()))] if len(points) else []
    points, weights = points[kept], weights[kept]
    last = np.array(hierarchy(points)[-1])
    result = []
    for g in range(last.max() + 1):
        rows, share = points[last == g], weights[last == g]
        mean = np.average(rows, axis=0, weights=share if weighted else None)
        result.append((mean, float(share.sum())))
    return result


def as_clusters(prototypes: Prototypes) -> Clusters:
    """Dense prototypes, [C, M, D], as lists of (vector, count)."""
    clusters: Clusters = {}
    for c in range(prototypes.counts.shape[0]):
        for m in range(prototypes.counts.shape[1]):
            if prototypes.counts[c, m] > 0:
                pair = (prototypes.vectors[c, m].double().numpy(), float(prototypes.counts[c, m]))
                clusters.setdefault(c, []).append(pair)
    return clusters


def power(z: Array, g: Array, alpha: float) -> float:
    """s_α: the cosine, or, for alpha other than 1, the cosine kept in [1e-4, 1] to the power of alpha."""
    return cosine(z, g) if alpha == 1 else min(max(cosine(z, g), 1e-4), 1.0) ** alpha


def shares(clusters: list[tuple[Array, float]], weights: str) -> list[float]:
    """W: each cluster's part of its class's count, the same part for each, or 1."""
    parts = {
        "samples": [count / sum(n for _, n in clusters) for _, count in clusters],
        "equal": [1 / len(clusters) for _ in clusters],
        "one": [1.0 for _ in clusters],
    }
    return parts[weights]


def cluster_contrast(
    features: Array, labels: Labels, clusters: Clusters, temperature: float, alpha: float, weights: str
) -> list[float]:
    """−log (Σ over the own class / Σ over all classes) of W exp(s_α/τ), scaled by the largest exponential."""
    losses = []
    for z, y in zip(features, labels, strict=True):
        if int(y) not in clusters:
            losses.append(0.0)
            continue
        top = max(power(z, g, alpha) / temperature for members in clusters.values() for g, _ in members)
        terms = {
            c: [
                w * math.exp(power(z, g, alpha) / temperature - top)
                for (g, _), w in zip(members, shares(members, weights), strict=True)
            ]
            for c, members in clusters.items()
        }
        own, everyone = math.fsum(terms[int(y)]), math.fsum(x for members in terms.values() for x in members)
        losses.append(-math.log(own / everyone))
    return losses


def cluster_attraction(
    features: Array, labels: Labels, clusters: Clusters, alpha: float, kept: dict[int, int], weights: str
) -> list[float]:
    """− the sum of the largest s_α W of the own class; `kept` says how many of how many clusters."""
    losses = []
    for z, y in zip(features, labels, strict=True):
        members = clusters.get(int(y), [])
        pulls = [power(z, g, alpha) * w for (g, _), w in zip(members, shares(members, weights), strict=True)]
        losses.append(-math.fsum(sorted(pulls, reverse=True)[: kept[len(pulls)]]))
    return losses
