"""K-means for every (client, class) at once (MP-FedCL Eq. 7)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.prototypes.means import group_means
from protofed.prototypes.segments import exact_distances, segments
from protofed.prototypes.type import Prototypes
from protofed.randomness import uniform

Start = Literal["random", "k-means++"]

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
) -> Prototypes:
    """Up to k prototypes a class and client, the means of its clusters: [N, n, D] becomes [N, C, k, D].

    Of `restarts` runs of Lloyd's algorithm the one with least inertia counts. A class with at most k samples is
    represented by its distinct samples; clusters that end empty are dropped; slots come in the order of their first
    members. `keys`, [N], are the clients' keys for the draws. With `space`, [N, n, E], samples are clustered there
    (say, normalised) and the prototypes are still means of `features`. A row labelled −1 is padding.
    """
    if k < 1:
        raise UserError("k", k, "a class needs one prototype or more")

    part = segments(labels, classes)
    points = part.gather(features if space is None else space)
    class_keys = (uniform(keys, _CLASS_KEYS, (classes,)) * 2**32).long()[part.clients, part.classes]

    centres = _STARTS[start](points, part.mask, class_keys, k, restarts)
    centres = _lloyd(points, part.mask, centres, iterations, tolerance)
    nearest, distances = _assign(points, centres)
    nearest = nearest.gather(-1, _best(distances, part.mask).view(-1, 1, 1).expand(*part.mask.shape, 1)).squeeze(-1)

    member = (nearest.unsqueeze(-1) == torch.arange(k, device=nearest.device)) & part.mask.unsqueeze(-1)
    rank = torch.arange(part.mask.shape[1], device=nearest.device).unsqueeze(-1)
    first_member = torch.where(member, rank, len(rank)).amin(-2)
    order = first_member.argsort(dim=-1, stable=True)  # empty clusters come last
    member = member.gather(-1, order.unsqueeze(-2).expand_as(member))
    return part.scatter(*group_means(part.gather(features), member))


def _random_start(points: Tensor, mask: Tensor, keys: Tensor, k: int, restarts: int) -> Tensor:
    """[S, R, K, D]: k different samples, those with the highest scores. A start that does not exist is at infinity."""
    scores = _draws(keys, _FIRST_PICK, mask, restarts).masked_fill(~mask.unsqueeze(-1), -1)
    scores, chosen = scores.sort(dim=1, descending=True, stable=True)
    return _take(points, chosen[:, :k].mT, scores[:, :k].mT >= 0)


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
    """The points [S, R, K, D] at the ranks `chosen`, [S, R, K]; at infinity where they do not exist."""
    segment = torch.arange(len(points), device=points.device).view(-1, 1, 1)
    return points[segment, chosen].masked_fill(~exists.unsqueeze(-1), torch.inf)


def _assign(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Each point's nearest centre and its distance, [S, m, R], in each of the R restarts."""
    distances = torch.unflatten(exact_distances(points, centres.flatten(1, 2)), -1, centres.shape[1:3])
    nearest = distances.argmin(-1)
    return nearest, distances.gather(-1, nearest.unsqueeze(-1)).squeeze(-1)


def _lloyd(points: Tensor, mask: Tensor, centres: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Lloyd's iterations; each restart of each segment stops by itself, when no centre moves beyond `tolerance`."""
    slots = torch.arange(centres.shape[2], device=points.device)
    moving = torch.ones(centres.shape[:2], dtype=torch.bool, device=points.device)
    for _ in range(iterations):
        nearest, _ = _assign(points, centres)
        member = (nearest.unsqueeze(-1) == slots) & mask.view(*mask.shape, 1, 1)
        means, counts = (torch.unflatten(x, 1, centres.shape[1:3]) for x in group_means(points, member.flatten(2)))
        update = (counts > 0) & moving.unsqueeze(-1)  # a centre without members stays where it is
        shift = torch.linalg.vector_norm(means - centres, dim=-1).masked_fill(~update, 0).amax(-1)
        centres = torch.where(update.unsqueeze(-1), means, centres)
        moving = shift > tolerance
        if not moving.any():
            break
    return centres


def _best(distances: Tensor, mask: Tensor) -> Tensor:
    """[S]: the restart with least inertia; the first of those that differ by no more than rounding."""
    inertia = (distances.to(torch.float64).square() * mask.unsqueeze(-1)).sum(1)
    least = inertia.amin(-1, keepdim=True)
    return (inertia <= least * (1 + 1e-6)).long().argmax(-1)
