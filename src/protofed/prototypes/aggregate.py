"""What a server makes of its clients' prototypes."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.prototypes.kmeans import kmeans
from protofed.prototypes.type import Prototypes

Weighting = Literal["uniform", "samples", "literal"]
"""Name how `mean_over_holders` weighs the clients that hold a class.

`uniform` weighs all alike, `samples` by their samples of the class, and `literal` follows FedProto's Eq. 6 as printed.

Example:
    >>> from typing import get_args
    >>> from protofed.prototypes import Weighting
    >>> get_args(Weighting)
    ('uniform', 'samples', 'literal')
"""


def mean_over_holders(prototypes: Prototypes, weighting: Weighting = "uniform") -> Prototypes:
    """Average each class's prototype over the clients that hold the class (FedProto Eq. 6).

    Args:
        prototypes: one prototype per client and class, vectors [N, C, 1, D] and counts [N, C, 1].
        weighting: `uniform` takes the plain mean, as the public code does; `samples` weighs a client by its samples of
            the class; `literal` is the equation as printed, which divides the latter by the number of holders once
            more.

    Returns:
        The means, vectors [C, 1, D] and counts [C, 1]: a count is the sum over the clients. A class that no client
        holds is an empty slot.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, mean_over_holders
        >>> held = Prototypes(torch.tensor([[[[0.0]]], [[[4.0]]]]), torch.tensor([[[1.0]], [[3.0]]]))
        >>> mean_over_holders(held).vectors.tolist()
        [[[2.0]]]
        >>> mean_over_holders(held, "samples").vectors.tolist()
        [[[3.0]]]
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
    """Fill the slots of clients that have fewer than K prototypes of a class (MP-FedCL Eq. 10).

    Such a client gets K copies of the mean over everything that was uploaded for the class. The padded pool serves the
    loss only: a padded slot has count 1.

    Args:
        pool: the clients' prototypes, vectors [N, C, K, D] and counts [N, C, K].

    Returns:
        The padded pool, of the same shapes. A class that nobody has stays empty.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, pad_with_class_mean
        >>> counts = torch.tensor([[[5.0, 5.0]], [[5.0, 0.0]]])
        >>> pool = Prototypes(torch.tensor([[[[2.0], [4.0]]], [[[6.0], [0.0]]]]), counts)
        >>> padded = pad_with_class_mean(pool)
        >>> padded.vectors.flatten(1).tolist()
        [[2.0, 4.0], [4.0, 4.0]]
        >>> padded.counts.flatten(1).tolist()
        [[5.0, 5.0], [1.0, 1.0]]
    """
    number = pool.filled.sum((0, 2))  # [C]
    mean = pool.vectors.sum((0, 2)) / number.clamp(min=1).unsqueeze(-1)
    short = ~pool.filled.all(-1, keepdim=True)  # [N, C, 1]
    filler = (number > 0).to(pool.counts.dtype).unsqueeze(-1)
    return Prototypes(
        torch.where(short.unsqueeze(-1), mean.unsqueeze(1), pool.vectors), torch.where(short, filler, pool.counts)
    )


def bound_pool(pool: Prototypes, size: int, key: int) -> Prototypes:
    """Reduce a pool to at most `size` prototypes per class.

    If the pool has more, k-means with one random start clusters each class's prototypes, weighed by their counts. The
    clusters stand as `size` clients with one prototype per class. A class that has fewer keeps its own.

    Args:
        pool: the clients' prototypes, vectors [N, C, K, D] and counts [N, C, K].
        size: the largest number of prototypes of a class.
        key: the key of the random start; see `protofed.randomness.key`.

    Returns:
        The pool itself if it is small enough, otherwise vectors [size, C, 1, D] and counts [size, C, 1].

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, bound_pool
        >>> pool = Prototypes(torch.tensor([0.0, 1.0, 10.0, 11.0]).view(4, 1, 1, 1), torch.ones(4, 1, 1))
        >>> sorted(bound_pool(pool, 2, key=0).vectors.flatten().tolist())
        [0.5, 10.5]
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
