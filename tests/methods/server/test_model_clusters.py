"""Clusters of models: seeds fall apart, empty clusters are filled, and a centre without participants stays."""

from __future__ import annotations

import pytest
import torch

from protofed.methods.server.model_clusters import cluster, refill, seeds
from protofed.randomness import key
from tests.support.server_runs import models


@pytest.mark.parametrize("seed", range(8))
def test_seeds_fall_into_every_distant_group(seed: int) -> None:
    stacked = models(6, seed)
    stacked["w"] += 1e5 * torch.tensor([0, 1, 2, 0, 1, 2]).view(-1, 1, 1)
    found = seeds(stacked, 3, key("a", seed))
    assert sorted(int(w.mean() / 1e5 + 0.5) for w in found["w"]) == [0, 1, 2]
    first = {int(seeds(stacked, 1, key("a", number))["s"][0] * 1e6) for number in range(30)}
    assert len(first) > 3  # any client may be the first


def test_an_empty_cluster_gets_the_farthest_client_that_is_not_alone() -> None:
    distances = torch.tensor([1.0, 9.0, 3.0, 5.0])
    nearest = torch.tensor([0, 1, 0, 0])
    assert refill(nearest, distances, torch.tensor([0, 0, 0])).tolist() == [0, 1, 0, 2]
    assert refill(nearest, distances, torch.tensor([0, 1, 0])).tolist() == [0, 2, 0, 0]  # 1 has a member elsewhere
    assert refill(nearest, distances, torch.tensor([0, 0, 1])).tolist() == [0, 1, 0, 0]  # so has 2
    assert refill(nearest, 0 * distances, torch.tensor([0, 0, 0])).tolist() == [0, 1, 0, 0]  # nothing to part
    assert refill(nearest[:2], distances[:2], torch.tensor([0, 0, 0])).tolist() == [0, 1]  # nobody to spare
    assert nearest.tolist() == [0, 1, 0, 0]


def test_a_cluster_without_participants_keeps_its_centre() -> None:
    stacked = models(2, 0)
    centres = {name: torch.cat([value, value[:1] + (1000 if name == "w" else 0)]) for name, value in stacked.items()}
    moved, nearest = cluster(stacked, torch.tensor([1, 1]), centres, torch.tensor([0, 0, 1]))
    assert nearest.tolist() == [0, 1]
    assert torch.equal(moved["w"][2], centres["w"][2])
