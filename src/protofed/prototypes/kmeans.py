"""K-means for every (client, class) at once (MP-FedCL Eq. 7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.internal.cuda_graphs import replayed
from protofed.prototypes.means import group_means
from protofed.prototypes.segments import Segments, exact_distances, patience, segments
from protofed.prototypes.type import Prototypes
from protofed.randomness import bits, uniform

Start = Literal["random", "k-means++"]
"""Name how `kmeans` draws its first centres.

`random` draws k different samples; `k-means++` draws each in proportion to its squared distance to those before.

Example:
    >>> from typing import get_args
    >>> from protofed.prototypes import Start
    >>> get_args(Start)
    ('random', 'k-means++')
"""

# Sites of the draws; pick number p of k-means++ draws at site p, and its first pick is the random start's.
_CLASS_KEYS, _FIRST_PICK = -1, 0


def kmeans(
    features: Tensor,
    labels: Tensor,
    classes: int,
    k: int,
    keys: Tensor,
    start: Start = "random",
    restarts: int = 5,
    iterations: int = 100,
    tolerance: float = 1e-4,
    space: Tensor | None = None,
    weights: Tensor | None = None,
) -> Prototypes:
    """Cluster the samples of each client and class with k-means, and average each cluster (MP-FedCL Eq. 7).

    Args:
        features: the clients' samples [N, n, D].
        labels: their classes [N, n]; a row labelled −1 is padding.
        classes: the number of classes, C.
        k: the largest number of prototypes of a class.
        keys: the clients' keys for the draws [N], int64; `Trained.keys` in a method.
        start: how the first centres are drawn.
        restarts: how often Lloyd's algorithm runs; the run with least inertia counts.
        iterations: the largest number of steps of a run.
        tolerance: a run stops when no centre moves farther than this.
        space: where the samples are clustered instead [N, n, E]. The prototypes are still means of `features`.
        weights: how much each sample counts [N, n]; 1 unless given.

    Returns:
        Vectors [N, C, k, D] and counts [N, C, k], in the order of the clusters' first members. A class with at most k
        samples is represented by its distinct samples; clusters that end empty are empty slots.

    Raises:
        UserError: `k` is below 1, or a label is not below `classes`.

    Example:
        >>> import torch
        >>> from protofed.prototypes import kmeans
        >>> features, labels = torch.tensor([[[0.0], [1.0], [10.0], [11.0]]]), torch.zeros(1, 4, dtype=torch.long)
        >>> kmeans(features, labels, 1, 2, torch.tensor([7])).vectors.flatten().tolist()
        [0.5, 10.5]
    """
    if k < 1:
        raise UserError("k", k, "a class needs one prototype or more")

    class_keys = bits(keys, _CLASS_KEYS, (classes,))

    def clustered(part: Segments) -> tuple[Tensor, Tensor]:
        samples = part.gather(features)
        points = samples if space is None else part.gather(space)
        weight = (part.mask if weights is None else part.gather(weights.unsqueeze(-1)).squeeze(-1)).to(points.dtype)
        centres = _STARTS[start](points, part.mask, class_keys[part.clients, part.classes], k=k, restarts=restarts)
        centres = _lloyd(points, weight, centres, iterations, tolerance)
        return _clusters(samples, points, part.mask, weight, centres, k=k)

    return segments(labels, classes).each(clustered)


@replayed
def _clusters(
    samples: Tensor, points: Tensor, mask: Tensor, weight: Tensor, centres: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The means [S, K, D] and total weights [S, K] of the clusters of the best restart, by first members."""
    distances = _distances(points, centres)
    best = _best(distances.amin(-1), weight).view(-1, 1, 1).expand(*weight.shape, 1)
    nearest = distances.argmin(-1).gather(-1, best)

    member = (nearest == torch.arange(k, device=nearest.device)) & mask.unsqueeze(-1)
    rank = torch.arange(mask.shape[1], device=nearest.device).unsqueeze(-1)
    first_member = torch.where(member, rank, len(rank)).amin(-2)
    order = first_member.argsort(dim=-1, stable=True)  # empty clusters come last
    member = member.gather(-1, order.unsqueeze(-2).expand_as(member))
    return group_means(samples, member * weight.unsqueeze(-1))


@replayed
def _random_start(points: Tensor, mask: Tensor, keys: Tensor, k: int, restarts: int) -> Tensor:
    """[S, R, K, D]: k different samples, those with the highest scores. A start that does not exist is far away."""
    scores = _draws(keys, _FIRST_PICK, mask, restarts).masked_fill(~mask.unsqueeze(-1), -1)
    scores, chosen = scores.sort(dim=1, descending=True, stable=True)
    return _take(points, chosen[:, :k].mT, scores[:, :k].mT >= 0)


@replayed
def _plus_plus_start(points: Tensor, mask: Tensor, keys: Tensor, k: int, restarts: int) -> Tensor:
    """k-means++: each pick falls on a sample with probability proportional to its squared distance to those before."""
    weight = mask.unsqueeze(-1).expand(*mask.shape, restarts).to(torch.float64)
    reach = torch.full_like(weight, torch.inf)
    picks = []
    for pick in range(k):
        # An exponential race: the sample that arrives first at rate `weight` wins with probability weight / Σ weight.
        arrival = -torch.log1p(-_draws(keys, _FIRST_PICK + pick, mask, restarts)) / weight
        winner = arrival.masked_fill(weight == 0, torch.inf).argmin(dim=1).unsqueeze(-1)  # [S, R, 1]
        picks.append(_take(points, winner, (weight > 0).any(1).unsqueeze(-1)))
        reach = torch.minimum(reach, exact_distances(points, picks[-1].squeeze(2)).to(torch.float64))
        weight = reach.square() * mask.unsqueeze(-1)
    return torch.cat(picks, dim=2)


_STARTS = {"random": _random_start, "k-means++": _plus_plus_start}


def _draws(keys: Tensor, site: int, mask: Tensor, restarts: int) -> Tensor:
    """[S, m, R] uniform numbers addressed by client, class, rank in the segment and restart: padding changes none."""
    return uniform(keys, site, (mask.shape[1], restarts))


def _take(points: Tensor, chosen: Tensor, exists: Tensor) -> Tensor:
    """The points [S, R, K, D] at the ranks `chosen`, [S, R, K]; infinitely far where they do not exist."""
    segment = torch.arange(len(points), device=points.device).view(-1, 1, 1)
    # Not ∞: a centre that stays there moves by 0, not by ∞ − ∞. Squared, it is.
    return points[segment, chosen].masked_fill(~exists.unsqueeze(-1), torch.finfo(points.dtype).max)


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    """From each point to each centre of each of the R restarts, [S, m, R, K]."""
    return torch.unflatten(exact_distances(points, centres.flatten(1, 2)), -1, centres.shape[1:3])


def _lloyd(points: Tensor, weight: Tensor, centres: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Lloyd's iterations; each restart of each segment stops by itself, when no centre moves beyond `tolerance`."""
    moving = torch.ones(centres.shape[:2], dtype=torch.bool, device=points.device)
    for step in range(0, iterations, patience(points.device)):
        steps = min(patience(points.device), iterations - step)
        centres, moving = _iterate(points, weight, centres, moving, steps=steps, tolerance=tolerance)
        if not moving.any():
            break
    return centres


@replayed
def _iterate(
    points: Tensor, weight: Tensor, centres: Tensor, moving: Tensor, steps: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Some of them: the centres, and which restarts, [S, R], still move."""
    slots = torch.arange(centres.shape[2], device=points.device)
    for _ in range(steps):
        nearest = _distances(points, centres).argmin(-1, keepdim=True)
        member = (nearest == slots) * weight.view(*weight.shape, 1, 1)
        means, counts = (torch.unflatten(x, 1, centres.shape[1:3]) for x in group_means(points, member.flatten(2)))
        update = (counts > 0) & moving.unsqueeze(-1)  # a centre without members stays where it is
        before, centres = centres, torch.where(update.unsqueeze(-1), means, centres)
        moving = torch.linalg.vector_norm(centres - before, dim=-1).amax(-1) > tolerance
    return centres, moving


def _best(distances: Tensor, weight: Tensor) -> Tensor:
    """[S]: the restart with least inertia; the first of those that differ by no more than rounding."""
    inertia = (distances.to(torch.float64).square() * weight.unsqueeze(-1)).sum(1)
    least = inertia.amin(-1, keepdim=True)
    return (inertia <= least * (1 + 1e-6)).view(torch.uint8).argmax(-1)
