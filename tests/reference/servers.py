"""Slow, obvious versions of FeSEM, FedNH and FedCDA: lists and loops over clients, clusters, classes and combinations.

Nothing here calls an engine or a method. A model is a {name: tensor}; only FeSEM's seeds share the library's draws.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protofed.randomness import uniform
from tests.reference.methods import State, weighted_mean

Pick = tuple[State, float]  # a model and its loss


def counted(state: State) -> list[str]:
    """What a distance between models is about."""
    return [n for n, value in state.items() if value.is_floating_point() and not n.endswith(("_mean", "_var"))]


def squared_distance(a: State, b: State) -> float:
    """Σ (a − b)², number by number."""
    total = 0.0
    for name in counted(a):
        for x, y in zip(a[name].flatten().tolist(), b[name].flatten().tolist(), strict=True):
            total += (x - y) ** 2
    return total


@dataclass
class FeSEM:
    """K centres and who belongs to which."""

    clusters: int
    centres: list[State] = field(default_factory=list)
    member: dict[int, int] = field(default_factory=dict)

    def seed(self, models: Sequence[State], key: int) -> None:
        """k-means++: of those that race at rate |distance to the nearest pick|², the first to arrive is picked."""
        for pick in range(self.clusters):
            draws = uniform(torch.tensor(key), pick, (len(models),))
            winner, best = 0, float("inf")
            for i, model in enumerate(models):
                rate = min([squared_distance(model, centre) for centre in self.centres], default=1.0)
                arrival = float(-torch.log1p(-draws[i])) / rate if rate else float("inf")
                if arrival < best:
                    winner, best = i, arrival
            self.centres.append(models[winner])

    def step(self, who: Sequence[int], models: Sequence[State], importance: Sequence[float]) -> None:
        """One E-step, empty clusters, one M-step."""
        distance: dict[int, float] = {}
        for client, model in zip(who, models, strict=True):
            distances = [squared_distance(model, centre) for centre in self.centres]
            distance[client] = min(distances)
            self.member[client] = distances.index(distance[client])
        for empty in range(self.clusters):
            sizes = [list(self.member.values()).count(k) for k in range(self.clusters)]
            spare = [c for c in who if sizes[self.member[c]] > 1 and distance[c] > 0]
            if sizes[empty] == 0 and spare:
                farthest = max(spare, key=lambda client: distance[client])
                self.member[farthest], distance[farthest] = empty, 0.0
        for k in range(self.clusters):
            mine = [row for row, client in enumerate(who) if self.member[client] == k]
            if mine:
                self.centres[k] = weighted_mean([models[row] for row in mine], [importance[row] for row in mine])


def unit(x: Tensor) -> Tensor:
    """A vector of length 1; zeros stay zeros."""
    length = float((x * x).sum()) ** 0.5
    return x / length if length > 0 else x


def cosine_logits(z: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """For each class s · cos(z, W_c)."""
    return torch.stack([scale * (unit(z) * row).sum() for row in prototypes])


def class_directions(pairs: Sequence[tuple[Tensor, int]]) -> dict[int, tuple[Tensor, int]]:
    """FedNH's μ_c with n_c: the direction of the mean of a class's directions."""
    found: dict[int, list[Tensor]] = {}
    for z, label in pairs:
        found.setdefault(label, []).append(unit(z))
    return {label: (unit(torch.stack(zs).sum(0) / len(zs)), len(zs)) for label, zs in found.items()}


def move(prototypes: Tensor, clients: Sequence[dict[int, tuple[Tensor, int]]], rho: float) -> Tensor:
    """FedNH's server: W_c ← unit(ρ W_c + (1−ρ) m_c)."""
    moved = prototypes.clone()
    for c, row in enumerate(prototypes):
        held = [client[c] for client in clients if c in client]
        if held:
            total = sum((n * mu for mu, n in held), torch.zeros_like(row)) / sum(n for _, n in held)
            moved[c] = unit(rho * row + (1 - rho) * unit(total))
    return moved


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
