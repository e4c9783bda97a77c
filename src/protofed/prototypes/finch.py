"""FINCH for every (client, class) at once: clusters without a number to choose (FPL, FedPLVM, FedPLCC)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.errors import UserError, unknown
from protofed.prototypes.segments import Segments, segments
from protofed.prototypes.type import Prototypes

Centroids = Literal["unweighted", "weighted"]
"""Name how `finch` averages the members of a cluster: all alike, or by their weights.

Example:
    >>> from typing import get_args
    >>> from protofed.prototypes import Centroids
    >>> get_args(Centroids)
    ('unweighted', 'weighted')
"""

_TIE = 1e-12  # cosines, in float64, no further apart than this are equal: copies, scaled copies, symmetric rows
_BLOCK = 2**24  # cosines held at once: 128 MiB


def finch(
    features: Tensor,
    labels: Tensor,
    classes: int,
    weights: Tensor | None = None,
    centroids: Centroids = "unweighted",
) -> Prototypes:
    """Cluster the samples of each client and class with FINCH, and average each cluster (FedPLVM, FedPLCC).

    FINCH links each sample with its nearest neighbour by cosine and needs no number of clusters. The clusters are those
    of its last, coarsest partition (Sarfraz et al., CVPR 2019).

    Args:
        features: the clients' samples [N, n, D].
        labels: their classes [N, n]; a row labelled −1 is padding.
        classes: the number of classes, C.
        weights: how much each sample counts [N, n]; 1 unless given. Weights do not change the partition.
        centroids: `weighted` weighs the members of a mean too.

    Returns:
        Vectors [N, C, M, D] in the order of the clusters' first members, M as the fullest class needs, and counts [N,
        C, M]: the sums of the members' weights. Zero rows have no direction and are left out; a class with nothing else
        is represented by its mean, zero.

    Raises:
        UserError: a weight is not positive and finite, `centroids` is unknown, or a label is not below `classes`.

    Example:
        >>> import torch
        >>> from protofed.prototypes import finch
        >>> features = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 5.0]]])
        >>> finch(features, torch.zeros(1, 4, dtype=torch.long), 1).vectors.tolist()
        [[[[2.0, 0.0], [0.0, 3.0]]]]
    """
    if weights is None:
        weights = features.new_ones(labels.shape)
    elif len(wrong := weights[(labels >= 0) & ~((weights > 0) & weights.isfinite())]):
        raise UserError("weights", wrong[0].item(), "a sample's weight is positive and finite")
    weight = weights.unsqueeze(-1)

    def clustered(part: Segments) -> tuple[Tensor, Tensor]:
        return _prototypes(part.gather(features), part.mask, part.gather(weight).squeeze(-1), centroids)

    return segments(labels, classes).each(clustered)


def finch_pool(pool: Prototypes, centroids: Centroids = "unweighted") -> Prototypes:
    """Cluster all clients' prototypes with FINCH, class by class (FPL, FedPLVM, FedPLCC).

    Args:
        pool: the clients' prototypes, vectors [N, C, M, D] and counts [N, C, M].
        centroids: `weighted` weighs a prototype in the mean by its count.

    Returns:
        Vectors [C, M', D] and counts [C, M']: the samples that each cluster stands for.

    Raises:
        UserError: `centroids` is unknown.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, finch_pool
        >>> vectors = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 5.0]]).view(4, 1, 1, 2)
        >>> clusters = finch_pool(Prototypes(vectors, torch.tensor([1.0, 3.0, 1.0, 1.0]).view(4, 1, 1)), "weighted")
        >>> clusters.vectors.tolist(), clusters.counts.tolist()
        ([[[2.5, 0.0], [0.0, 3.0]]], [[4.0, 2.0]])
    """
    rows = pool.pooled()
    return Prototypes(*_prototypes(rows.vectors, rows.filled, rows.counts, centroids))


def hierarchy(points: Tensor, mask: Tensor) -> Tensor:
    """[S, m, L]: each row's cluster at each level, finest first, numbered by first member; −1 for zeros and padding.

    A segment with fewer than L levels repeats its last. No level but the first is a single cluster. (FINCH also stops
    at a level that merges one cluster or none; there is no such level, because every cluster joins another.)
    """
    points = points.to(torch.float64)
    mask = mask & points.any(-1)
    label = _components(_first_neighbours(points, mask), mask)
    levels = []
    going = label.amax(-1, keepdim=True) > 0  # more than one cluster is left
    while number := _most(torch.where(going.any(), label, -1)):
        levels.append(label)
        order, bounds = _by_cluster(label, number)
        sizes = bounds.diff().unsqueeze(-1)
        means, exists = _sums(points, order, bounds) / sizes.clamp(min=1), sizes.squeeze(-1) > 0
        joined = _components(_first_neighbours(means, exists), exists)
        going = joined.amax(-1, keepdim=True) > 0
        label = torch.where(going & mask, joined.gather(-1, label.clamp(min=0)), label)
    return torch.stack(levels or [label], dim=-1)


def _prototypes(rows: Tensor, mask: Tensor, weight: Tensor, centroids: Centroids) -> tuple[Tensor, Tensor]:
    """The centroids, [S, M, D], and total weights, [S, M], of each segment's last partition."""
    if centroids not in get_args(Centroids):
        raise unknown("centroids", centroids, get_args(Centroids))
    cluster = hierarchy(rows, mask)[..., -1]
    only_zeros = (cluster < 0).all(-1, keepdim=True)
    cluster = torch.where(only_zeros & mask, 0, cluster)

    order, bounds = _by_cluster(cluster, max(1, _most(cluster)))
    weight, values = weight.to(torch.float64).unsqueeze(-1), rows.to(torch.float64)
    counts = _sums(weight, order, bounds)
    total = bounds.diff().unsqueeze(-1)
    if centroids == "weighted":
        values, total = weight * values, counts
    means = _sums(values, order, bounds) / torch.where(total > 0, total, 1)
    return means.to(rows.dtype), counts.squeeze(-1).to(rows.dtype)


def _first_neighbours(points: Tensor, mask: Tensor) -> Tensor:
    """[S, m]: the other row with the largest cosine, the first of equals; a row without others gets itself."""
    count, size = mask.shape
    scale = torch.linalg.vector_norm(
        points, torch.inf, -1, keepdim=True
    )  # taken out first: squares of tiny values vanish
    unit = normalize(points / torch.where(scale > 0, scale, 1), dim=-1)
    outside = ~mask
    nearest = torch.empty(mask.shape, dtype=torch.int64, device=points.device)
    some, rows = max(1, _BLOCK // size**2), max(1, _BLOCK // size)
    for s in range(0, count, some):
        for r in range(0, size, rows):
            block = (slice(s, s + some), slice(r, r + rows))
            cosines = unit[block] @ unit[block[0]].mT
            cosines.masked_fill_(outside[block].unsqueeze(-1) | outside[block[0]].unsqueeze(-2), -torch.inf)
            cosines.diagonal(r, -2, -1).fill_(-2)  # less than any other row
            largest = cosines.amax(-1, keepdim=True)
            nearest[block] = (cosines >= largest - _TIE).view(torch.uint8).argmax(-1)
    return nearest


def _components(nearest: Tensor, mask: Tensor) -> Tensor:
    """[S, m]: the connected components of the edges (i, nearest of i), numbered by first member; −1 outside `mask`."""
    size = nearest.shape[-1]
    index = torch.arange(size, device=nearest.device).expand_as(nearest)
    # Following the edges from any row leads into its component's one cycle. After 2^k ≥ m steps `ahead` is on it and
    # `lowest`, the least index met from a row on, is the same for all rows of the cycle.
    ahead, lowest = nearest, index
    for _ in range(size.bit_length()):
        lowest = torch.minimum(lowest, lowest.gather(-1, ahead))
        ahead = ahead.gather(-1, ahead)
    cycle = lowest.gather(-1, ahead)
    first = torch.full_like(index, size).scatter_reduce(-1, cycle, index, "amin").gather(-1, cycle)
    number = ((first == index) & mask).cumsum(-1) - 1
    return torch.where(mask, number.gather(-1, first), -1)


def _most(label: Tensor) -> int:
    """The number of clusters in the segment with most."""
    return int(label.max()) + 1 if label.numel() else 0


def _by_cluster(label: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """[S, m], [S, M + 1]: the rows cluster by cluster, in their old order, and where each cluster begins and ends."""
    label, order = label.sort(dim=-1, stable=True)
    return order, torch.searchsorted(label, torch.arange(number + 1, device=label.device).repeat(len(label), 1))


def _sums(values: Tensor, order: Tensor, bounds: Tensor) -> Tensor:
    """[S, M, D]: the sum of each cluster's rows, [S, m, D]; rows labelled −1 are in none.

    Rows are added one by one in their order, so that neither padding nor other segments change a bit.
    """
    rows = values.gather(1, order.unsqueeze(-1).expand_as(values))
    return torch.segment_reduce(rows, "sum", offsets=bounds, axis=1, unsafe=True)
