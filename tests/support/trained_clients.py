"""What some clients have after training, and the class means they should send of it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.methods.base import Trained
from protofed.prototypes import Prototypes
from tests.reference import prototypes as reference
from tests.support.prototype_cases import random_features, random_labels


def states(clients: int, seed: int) -> dict[str, Tensor]:
    """Weights of some clients, an integer buffer among them."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64),
        "b": torch.randn(clients, 4, generator=rng),
        "scale": torch.randn(clients, generator=rng, dtype=torch.float64),
        "batches": torch.randint(0, 99, (clients,), generator=rng),
    }


def client(stacked: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    return {name: value[k] for name, value in stacked.items()}


def trained(seed: int) -> Trained:
    features, labels = random_features(3, 30, 4, seed=seed), random_labels(3, 30, classes=3, seed=seed)
    keys, losses = torch.tensor([11, 22, 33]), torch.tensor([0.5, 1.5, 2.5])
    return Trained(states(3, seed), torch.tensor([5, 1, 2]), features, labels, 4, keys, losses)


def assert_class_means(sent: Prototypes, clients: Trained) -> None:
    """One mean a class that a client holds, with its number of samples."""
    for k in range(3):
        expected = reference.class_means(clients.features[k].numpy(), clients.labels[k].numpy())
        assert sent.present[k].nonzero().flatten().tolist() == sorted(expected)
        assert not sent.present[k, 3]
        for c, (mean, number) in expected.items():
            assert_close(sent.vectors[k, c, 0], torch.tensor(mean))
            assert sent.counts[k, c, 0] == number
