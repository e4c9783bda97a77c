"""A slow, obvious version of FedHEAL: one client, one parameter, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]


def consistency(past: Sequence[float], now: float) -> float:
    """In which part of its past updates a parameter moved as it does now; no move counts as a fall."""
    alike = [(one <= 0) == (now <= 0) for one in past]
    return sum(alike) / len(alike)


def keeps(past: Sequence[Tensor], update: Tensor, threshold: float) -> Tensor:
    """Which entries of an update are kept: all in the first turn."""
    kept = torch.ones(update.numel(), dtype=torch.bool)
    if past:
        flat = [one.flatten().tolist() for one in past]
        for place, now in enumerate(update.flatten().tolist()):
            kept[place] = consistency([one[place] for one in flat], now) > threshold
    return kept.view(update.shape)


def weigh(
    distances: Sequence[float], before: Sequence[float], changes: Sequence[float], beta: float
) -> tuple[list[float], list[float]]:
    """The next p and Δ of the participants."""
    total = sum(distances)
    new = [(1 - beta) * change + beta * one / total for change, one in zip(changes, distances, strict=True)]
    return [p + change for p, change in zip(before, new, strict=True)], new


def length(updates: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> float:
    """The sum of the layers' lengths, of what is kept."""
    return sum(
        math.sqrt(
            sum(
                float(one) ** 2
                for one, stays in zip(update.flatten(), kept[name].flatten(), strict=True)
                if bool(stays)
            )
        )
        for name, update in updates.items()
    )


def server(
    old: Mapping[str, Tensor],
    updates: Sequence[Mapping[str, Tensor]],
    kept: Sequence[Mapping[str, Tensor]],
    p: Sequence[float],
) -> State:
    """Every parameter moves by the weighted mean of the updates of those who kept it."""
    new = {}
    for name, value in old.items():
        result = value.clone().flatten()
        for place in range(result.numel()):
            who = [k for k in range(len(p)) if bool(kept[k][name].flatten()[place])]
            total = sum(p[k] for k in who)
            for k in who:
                result[place] += p[k] / total * updates[k][name].flatten()[place]
        new[name] = result.view(value.shape)
    return new
