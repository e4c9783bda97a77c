"""A slow, obvious version of FeSEM: lists and loops over clients and clusters.

Nothing here calls an engine or a method; only the seeds share the library's draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from protofed.randomness import uniform
from tests.reference.methods import State, weighted_mean
from tests.reference.model_distances import squared_distance


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
