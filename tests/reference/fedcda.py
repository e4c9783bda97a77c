"""A slow, obvious version of FedCDA: lists and loops over clients and combinations."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tests.reference.methods import State, weighted_mean
from tests.reference.model_distances import counted

Pick = tuple[State, float]  # a model and its loss


def objective(picks: Sequence[Pick], smoothness: float) -> float:
    """FedCDA: mean loss + L/2 · (mean squared length − squared length of the mean), as it is written."""
    n = len(picks)
    value = sum(loss for _, loss in picks) / n
    for name in counted(picks[0][0]):
        mean = torch.zeros_like(picks[0][0][name])
        for model, _ in picks:
            value += smoothness / 2 * float((model[name] ** 2).sum()) / n
            mean += model[name] / n
        value -= smoothness / 2 * float((mean**2).sum())
    return value


@dataclass
class FedCDA:
    """The most recent models of each client, and the selected one."""

    k: int
    smoothness: float
    cache: dict[int, deque[Pick]] = field(default_factory=dict)
    selected: dict[int, Pick] = field(default_factory=dict)

    def add(self, who: Sequence[int], models: Sequence[State], losses: Sequence[float]) -> None:
        """New models, selected until something better is found."""
        for client, model, loss in zip(who, models, losses, strict=True):
            self.cache.setdefault(client, deque(maxlen=self.k)).append((model, loss))
            self.selected[client] = (model, loss)

    def select(self, who: Sequence[int], groups: Sequence[Sequence[int]]) -> None:
        """Group after group, every combination; `groups` hold positions in `who`."""
        fixed = {client: pick for client, pick in self.selected.items() if client not in who}
        for group in groups:
            members = [who[position] for position in group]
            combinations = list(itertools.product(*(self.cache[client] for client in members)))
            values = [objective([*fixed.values(), *combination], self.smoothness) for combination in combinations]
            best = combinations[values.index(min(values))]
            fixed |= dict(zip(members, best, strict=True))
        self.selected = fixed

    def mean(self) -> State:
        """The plain mean of everyone's selected model."""
        return weighted_mean([model for model, _ in self.selected.values()], [1.0] * len(self.selected))
