"""FedPCL is here from its equations: plain loops over clients, classes and samples.

Losses are one number per sample and can be differentiated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.class_vectors import ZERO, Vectors, length, log_sum_exp, mean


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
