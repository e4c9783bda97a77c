"""FINCH for every (client, class) at once: clusters without a number to choose (FPL, FedPLVM, FedPLCC)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.errors import UserError, unknown
from protofed.prototypes.segments import segments
from protofed.prototypes.type import Prototypes

Centroids = Literal["unweighted", "weighted"]

_TIE = 1e-12  # cosines, in float64, no further apart than this are equal: copies, scaled copies, symmetric rows
_BLOCK = 2**24  # cosines held at once: 128 MiB


def finch(
    features: Tensor,
    labels: Tensor,
    classes: int,
    weights: Tensor | None = None,
    centroids: Centroids = "unweighted",
) -> Prototypes:
    """The mean of each cluster of a class: [N, n, D] becomes [N, C, M, D], M as the fullest class needs.

    Clusters are those of FINCH's last, coarsest partition by cosine, in the order of their first members. A count is
    the sum of the members' `weights`, [N, n], or their number; weights do not change the partition, and change the
    means only with `weighted` centroids. Zero rows have no direction and are left out; a class with nothing else is
    represented by its mean, zero. A row labelled −1 is padding.
    """
    part = segments(labels, classes)
    if weights is None:
        weights = features.new_ones(labels.shape)
    elif len(wrong := weights[(labels >= 0) & ~((weights > 0) & weights.isfinite())]):
        raise UserError("weights", wrong[0].item(), "a sample's weight is positive and finite")
    weight = part.gather(weights.unsqueeze(-1)).squeeze(-1)
    return part.scatter(*_prototypes(part.gather(features), part.mask, weight, centroids))


def finch_pool(pool: Prototypes, centroids: Centroids = "unweighted") -> Prototypes:
    """Clusters, class by class, of all clients' prototypes: [N, C, M, D] becomes [C, M', D].

    A count is the sum of the members' counts: the samples that the cluster stands for.
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
    levels = [label]
    while True:
        number = _sums(mask.to(torch.float64).unsqueeze(-1), label)
        means = _sums(points, label) / number.clamp(min=1)
        exists = number.squeeze(-1) > 0
        joined = _components(_first_neighbours(means, exists), exists)
        going = joined.amax(-1, keepdim=True) > 0  # more than one cluster is left
        if not going.any():
            return torch.stack(levels, dim=-1)
        label = torch.where(going & mask, joined.gather(-1, label.clamp(min=0)), label)
        levels.append(label)


def _prototypes(rows: Tensor, mask: Tensor, weight: Tensor, centroids: Centroids) -> tuple[Tensor, Tensor]:
    """The centroids, [S, M, D], and total weights, [S, M], of each segment's last partition."""
    if centroids not in get_args(Centroids):
        raise unknown("centroids", centroids, get_args(Centroids))
    cluster = hierarchy(rows, mask)[..., -1]
    only_zeros = (cluster < 0).all(-1, keepdim=True)
    cluster = torch.where(only_zeros & mask, 0, cluster)

    weight = weight.to(torch.float64).unsqueeze(-1)
    share = weight if centroids == "weighted" else torch.ones_like(weight)
    total = _sums(share, cluster)
    means = _sums(share * rows, cluster) / torch.where(total > 0, total, 1)
    return means.to(rows.dtype), _sums(weight, cluster).squeeze(-1).to(rows.dtype)


def _first_neighbours(points: Tensor, mask: Tensor) -> Tensor:
    """[S, m]: the other row with the largest cosine, the first of equals; a row without others gets itself."""
    count, size = mask.shape
    scale = points.abs().amax(-1, keepdim=True)  # taken out first: squares of tiny values vanish
    unit = normalize(points / torch.where(scale > 0, scale, 1), dim=-1)
    nearest = torch.arange(size, device=points.device).repeat(count, 1)
    some, rows = max(1, _BLOCK // size**2), max(1, _BLOCK // size)
    for s in range(0, count, some):
        for r in range(0, size, rows):
            block = (slice(s, s + some), slice(r, r + rows))
            cosines = unit[block] @ unit[block[0]].mT
            cosines.masked_fill_(~mask[block[0]].unsqueeze(-2), -torch.inf)
            cosines.diagonal(r, -2, -1).fill_(-torch.inf)
            largest = cosines.amax(-1, keepdim=True)
            first = (cosines >= largest - _TIE).to(torch.uint8).argmax(-1)
            alone = ~mask[block] | (largest.squeeze(-1) == -torch.inf)
            nearest[block] = torch.where(alone, nearest[block], first)
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


def _sums(values: Tensor, label: Tensor) -> Tensor:
    """[S, M, D]: the sum of each cluster's rows, [S, m, D]; rows labelled −1 are in none.

    Rows are added one by one in their order, so that neither padding nor other segments change a bit.
    """
    number = max(1, int(label.max()) + 1) if label.numel() else 1
    rows = torch.zeros(len(label), number + 1, dtype=torch.int64, device=label.device)
    rows.scatter_add_(-1, label + 1, torch.ones_like(label))
    order = label.argsort(dim=-1, stable=True).unsqueeze(-1).expand_as(values)
    return torch.segment_reduce(values.gather(1, order), "sum", lengths=rows, axis=1, unsafe=True)[:, 1:]
