"""Like FedGen: a generator of features, shared and trained in a phase of its own, lends classes that a client lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, one_hot

from protofed.methods.base import Batch, Phase, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.randomness import uniform

NOISE = 3


def of_generator(name: str) -> bool:
    return name.startswith("generator.")


@dataclass(frozen=True)
class FeatureGenerator(FedAvg):
    """First the model, with generated features of random classes in its head's loss; then the generator."""

    name: ClassVar[str] = "feature-generator"

    strength: float = param(0.5, "weight of generated features", at_least=0)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        """With a generator, which no forward uses."""
        module.generator = nn.Linear(NOISE + classes, cast(int, module.feature_size))
        return module

    def phases(self, epochs: int) -> Sequence[Phase]:
        """All but the generator, then the generator."""
        return [Phase(epochs, lambda name: not of_generator(name)), Phase(1, of_generator)]

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + strength · CE of generated features; in the second phase the latter alone."""
        weights, size = model.weights, len(batch.y)
        classes = len(weights["head.weight"])
        noise = uniform(turn.key, 0, (size, NOISE)).to(batch.x.dtype)
        wanted = (uniform(turn.key, 1, (size,)) * classes).long()
        given = torch.cat([noise, one_hot(wanted, classes).to(noise.dtype)], -1)
        features = linear(given, weights["generator.weight"], weights["generator.bias"]).relu()
        made = cross_entropy(linear(features, weights["head.weight"], weights["head.bias"]), wanted)
        return made if turn.phase else super().loss(model, batch, turn) + self.strength * made
