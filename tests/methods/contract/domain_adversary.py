"""Domains that features should not tell apart: a discriminator is trained in one phase and fooled in the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Phase, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models import Output
from protofed.models.net import Net

DOMAINS = 2


class Watched(nn.Module):
    """A model with a discriminator on its features."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.feature_size = cast(int, body.feature_size)
        self.body = body
        self.discriminator = nn.Linear(self.feature_size, DOMAINS)

    def forward(self, x: Tensor) -> Output:
        out = cast(Output, self.body(x))
        return out._replace(more={"domain": self.discriminator(out.features)})


@dataclass(frozen=True)
class DomainAdversary(FedAvg):
    """The server tells each client its domain; here those with even and with odd numbers."""

    name: ClassVar[str] = "domain-adversary"

    strength: float = param(0.1, "weight of what fools the discriminator", at_least=0)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        return Watched(module)

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:
        return replace(broadcast, numbers={"domain": torch.tensor(client % DOMAINS)})

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The model with the discriminator frozen, then the discriminator."""
        return [Phase(epochs, lambda n: "discriminator" not in n), Phase(1, lambda n: "discriminator" in n)]

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE − strength · CE of the domain; in the second phase the CE of the domain."""
        out = model(batch.x, train=turn.phase == 0)
        domain = cross_entropy(out.more["domain"], turn.received.numbers["domain"].expand_as(batch.y))
        return domain if turn.phase else cross_entropy(out.logits, batch.y) - self.strength * domain
