"""K-means on whole models (FeSEM): seeds, E-step, empty clusters, M-step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from protofed.methods.base import weighted_mean
from protofed.methods.server.model_distances import squared_distances
from protofed.randomness import uniform

Mean = Callable[[Mapping[str, Tensor], Tensor], dict[str, Tensor]]
"""Of models [N, ...], each as important as [N] says."""


def seeds(weights: Mapping[str, Tensor], clusters: int, key: int) -> dict[str, Tensor]:
    """K of N models [N, ...] by k-means++: [K, ...]; one stands for several centres if N or the different ones are few.

    Each pick falls on a model with probability proportional to its squared distance to the nearest one before.
    """
    some = next(iter(weights.values()))
    chance = torch.ones(len(some), dtype=torch.float64, device=some.device)
    reach = torch.full_like(chance, torch.inf)
    keys = torch.tensor(key, device=some.device)
    picks: list[int] = []
    for pick in range(clusters):
        # An exponential race: who arrives first at rate `chance` wins with probability chance / Σ chance.
        arrival = -torch.log1p(-uniform(keys, pick, (len(some),))) / chance
        picks.append(int(arrival.masked_fill(chance == 0, torch.inf).argmin()))
        last = {name: tensor[picks[-1:]] for name, tensor in weights.items()}
        reach = chance = torch.minimum(reach, squared_distances(weights, last).squeeze(1))
    return {name: tensor[picks] for name, tensor in weights.items()}


def cluster(
    weights: Mapping[str, Tensor],
    importance: Tensor,
    centres: Mapping[str, Tensor],
    absent: Tensor,
    steps: int = 1,
    mean: Mean = weighted_mean,
) -> tuple[dict[str, Tensor], Tensor]:
    """Some E- and M-steps of N models: the new centres [K, ...] and each model's cluster [N].

    `absent`, [K], is how many clients of each cluster are not among the N: such a cluster is not empty, and without
    any of the N it keeps its centre.
    """
    for _ in range(steps):
        distances, nearest = squared_distances(weights, centres).min(1)
        nearest = refill(nearest, distances, absent)
        centres = _means(weights, importance, nearest, centres, mean)
    return dict(centres), nearest


def refill(nearest: Tensor, distances: Tensor, absent: Tensor) -> Tensor:
    """Every empty cluster gets the model farthest from its centre, unless that would empty another one."""
    nearest, distances = nearest.clone(), distances.clone()
    for empty in range(len(absent)):
        sizes = absent + nearest.bincount(minlength=len(absent))
        spare = distances.where(sizes[nearest] > 1, 0)
        farthest = spare.argmax()
        if sizes[empty] == 0 and spare[farthest] > 0:
            nearest[farthest], distances[farthest] = empty, 0
    return nearest


def _means(
    weights: Mapping[str, Tensor], importance: Tensor, nearest: Tensor, centres: Mapping[str, Tensor], mean: Mean
) -> dict[str, Tensor]:
    """The weighted mean of each cluster's models."""
    found = []
    for number in range(len(next(iter(centres.values())))):
        member = nearest == number
        kept = {name: tensor[number] for name, tensor in centres.items()}
        found.append(mean(weights, importance * member) if bool(member.any()) else kept)
    return {name: torch.stack([centre[name] for centre in found]) for name in weights}
