"""What can be said of a set of prototypes in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofed.prototypes.type import Prototypes


def describe(sets: Mapping[str, Prototypes], before: Mapping[str, Prototypes]) -> dict[str, Any]:
    """Of each set (server.round.Described): prototypes per class, share of padding, and how far class means have moved.

    `drift` is the mean distance to the class means of the set before, over the classes that both have; None without
    any, or where it is too large for a number. Everything comes in one transfer from the device.
    """
    numbers, parts = [], []
    for name, found in sets.items():
        filled, mean = _filled(found), _means(found)
        moved = torch.full((), torch.nan, dtype=torch.float64, device=filled.device)
        if name in before and before[name].vectors.shape[-1] == mean.shape[-1]:
            both = (filled > 0) & (_filled(before[name]) > 0)
            distances = (mean - _means(before[name])).norm(dim=-1).double()
            moved = distances.where(both, 0).sum() / both.sum()  # nan if there are none
        numbers.append(torch.cat([filled.double(), moved.unsqueeze(0)]))
        parts.append((name, len(filled)))
    values = iter(torch.cat(numbers).tolist()) if numbers else iter(())
    told = {}
    for name, classes in parts:
        each = [int(next(values)) for _ in range(classes)]
        grid, drift = classes * max(each, default=0), next(values)
        padded = 1 - sum(each) / grid if grid else 0.0
        told[name] = {"each": each, "padded": padded, "drift": drift if math.isfinite(drift) else None}
    return told


def counted(sets: Mapping[str, Prototypes]) -> dict[str, list[int]]:
    """Prototypes a class in each set, of all clients."""
    return {name: _filled(found).tolist() for name, found in sets.items()}


def most(sets: Mapping[str, Prototypes]) -> int:
    """The most prototypes of a class that one of the clients has, in sets [N, C, M, D]."""
    return max((int(found.filled.sum(-1).max()) for found in sets.values() if len(found.counts)), default=0)


def _filled(found: Prototypes) -> Tensor:
    """[C]: how many prototypes each class has, of all clients."""
    return found.filled.sum(-1).flatten(0, -2).sum(0) if found.counts.dim() > 2 else found.filled.sum(-1)


def _means(found: Prototypes) -> Tensor:
    """[C, D]: the mean of each class's prototypes, of all clients."""
    total = found.vectors.sum(-2)
    total = total.flatten(0, -3).sum(0) if total.dim() > 2 else total
    return total / _filled(found).clamp(min=1).unsqueeze(-1)
