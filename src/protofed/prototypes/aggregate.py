"""What a server makes of its clients' prototypes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.prototypes.kmeans import kmeans
from protofed.prototypes.type import Prototypes

Weighting = Literal["uniform", "samples", "literal"]


def mean_over_holders(prototypes: Prototypes, weighting: Weighting = "uniform") -> Prototypes:
    """FedProto Eq. 6: each class's mean over the clients that hold it; [N, C, 1, D] becomes [C, 1, D].

    `uniform`: a plain mean, as in the public code. `samples`: weighted by the client's samples of the class.
    `literal`: the equation as printed, which divides the latter by the number of holders once more.
    """
    held = prototypes.filled.to(prototypes.vectors.dtype)
    weight = _share(held) if weighting == "uniform" else _share(prototypes.counts)
    if weighting == "literal":
        weight = weight * _share(held)
    return Prototypes((weight.unsqueeze(-1) * prototypes.vectors).sum(0), prototypes.counts.sum(0))


def _share(amount: Tensor) -> Tensor:
    """Each client's part of the total, [N, C, 1]; 0 where there is nothing to share."""
    total = amount.sum(0)
    return amount / torch.where(total > 0, total, 1)


def pad_with_class_mean(pool: Prototypes) -> Prototypes:
    """MP-FedCL Eq. 10: a client short of K prototypes of a class, [N, C, K, D], gets K copies of their mean over all.

    The mean is over everything uploaded for the class. A class nobody has stays empty. A padded slot has count 1: the
    padded pool serves the loss only.
    """
    number = pool.filled.sum((0, 2))  # [C]
    mean = pool.vectors.sum((0, 2)) / number.clamp(min=1).unsqueeze(-1)
    short = ~pool.filled.all(-1, keepdim=True)  # [N, C, 1]
    filler = (number > 0).to(pool.counts.dtype).unsqueeze(-1)
    return Prototypes(
        torch.where(short.unsqueeze(-1), mean.unsqueeze(1), pool.vectors), torch.where(short, filler, pool.counts)
    )


def bound_pool(pool: Prototypes, size: int, key: int) -> Prototypes:
    """At most `size` prototypes a class. A pool that has no more, [N, C, K, D], stays as it is.

    Otherwise each class's prototypes, weighed by their counts, are clustered by k-means from one random start, and the
    clusters stand as `size` clients with one prototype a class: [size, C, 1, D]. A class with fewer keeps its own.
    """
    rows = pool.pooled()
    classes, most = rows.counts.shape
    if most <= size:
        return pool
    labels = torch.where(rows.filled, torch.arange(classes, device=rows.counts.device).unsqueeze(-1), -1)
    keys = torch.tensor([key], device=labels.device)
    vectors, labels, counts = rows.vectors.view(1, classes * most, -1), labels.view(1, -1), rows.counts.view(1, -1)
    clusters = kmeans(vectors, labels, classes, size, keys, restarts=1, weights=counts)
    return Prototypes(clusters.vectors.permute(2, 1, 0, 3), clusters.counts.permute(2, 1, 0))
