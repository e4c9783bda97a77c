"""Who takes part in a round."""

from __future__ import annotations

import torch

from protofed.experiment import Experiment
from protofed.randomness import generator


def participants(experiment: Experiment, clients: int, number_of_round: int) -> list[int]:
    """Who takes part in a round, in client order."""
    draws = generator(experiment.seed, "participation", number_of_round)
    if experiment.hides_clients:  # each by itself, perhaps nobody: so the accounting takes it to be
        return torch.rand(clients, generator=draws).lt(experiment.participation).nonzero().squeeze(1).tolist()
    number = max(1, round(experiment.participation * clients))
    return sorted(torch.randperm(clients, generator=draws)[:number].tolist())
