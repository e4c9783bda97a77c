"""What slow versions of FPL, FedPLVM, FedPLCC and FedProc share: a contrast with clusters, one cluster at a time.

Clusters are {class: [(vector, number of samples)]}. A loss takes one feature, its label and its cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.prototypes import Prototypes
from tests.reference.finch import finch

Clusters = dict[int, list[tuple[Tensor, float]]]


def as_clusters(prototypes: Prototypes) -> Clusters:
    """Dense prototypes, [C, M, D], as lists."""
    found: Clusters = {}
    for c in range(prototypes.counts.shape[0]):
        for m in range(prototypes.counts.shape[1]):
            if prototypes.counts[c, m] > 0:
                found.setdefault(c, []).append((prototypes.vectors[c, m], float(prototypes.counts[c, m])))
    return found


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a·b / (|a| |b|)."""
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def sparsity(z: Tensor, g: Tensor, alpha: float) -> Tensor:
    """s_α = cos^α, with the cosine kept at 1e-4 or more; a plain cosine for α = 1."""
    s = cosine(z, g)
    if alpha == 1:
        return s
    return (s if 1e-4 < s.item() < 1 else torch.full_like(s, min(max(s.item(), 1e-4), 1.0))) ** alpha


def contrast(z: Tensor, y: int, clusters: Clusters, tau: float, alpha: float, weighted: bool) -> Tensor:
    """−log (Σ_{G^y} W exp(s_α/τ) / Σ_G W exp(s_α/τ)); W sums to 1 in each class."""
    if y not in clusters:
        return torch.zeros((), dtype=z.dtype)
    own = everyone = torch.zeros((), dtype=z.dtype)
    for c, members in clusters.items():
        total = sum(number for _, number in members)
        for g, number in members:
            term = (number / total if weighted else 1.0) * (sparsity(z, g, alpha) / tau).exp()
            everyone = everyone + term
            if c == y:
                own = own + term
    return -(own / everyone).log()


def mean_of(members: Sequence[tuple[Tensor, float]]) -> Tensor:
    """The mean of a class's clusters, each counted once."""
    return torch.stack([g for g, _ in members]).mean(0)


def class_means(features: Tensor, labels: Tensor) -> Clusters:
    """One client's class means; −1 is padding."""
    rows: dict[int, list[Tensor]] = {}
    for z, y in zip(features, labels.tolist(), strict=True):
        if y >= 0:
            rows.setdefault(y, []).append(z)
    return {c: [(torch.stack(found).mean(0), float(len(found)))] for c, found in sorted(rows.items())}


def local_clusters(features: Tensor, labels: Tensor) -> Clusters:
    """FINCH on each class of one client."""
    found: Clusters = {}
    for c in sorted({int(y) for y in labels if y >= 0}):
        points = torch.stack([z for z, y in zip(features, labels.tolist(), strict=True) if y == c])
        clusters = finch(points.numpy(), torch.ones(len(points)).numpy(), weighted=False)
        found[c] = [(torch.from_numpy(g), number) for g, number in clusters]
    return found


def pool_clusters(clients: Sequence[Clusters], weighted: bool) -> Clusters:
    """FINCH on what all clients sent of a class, in client order."""
    found: Clusters = {}
    for c in sorted({c for client in clients for c in client}):
        sent = [pair for client in clients for pair in client.get(c, [])]
        points = torch.stack([g for g, _ in sent])
        numbers = torch.tensor([number for _, number in sent], dtype=torch.float64)
        clusters = finch(points.numpy(), numbers.numpy(), weighted)
        found[c] = [(torch.from_numpy(g), number) for g, number in clusters]
    return found
