"""Like FedDF (Lin et al., NeurIPS 2020): the server distils its clients into their mean, on public images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, Summed, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class ServerDistillation(FedAvg):
    """Some steps from the mean towards what the clients say together."""

    name: ClassVar[str] = "server-distillation"
    uses_public: ClassVar[bool] = True

    images: int = param(32, "how many public images", at_least=1)
    server_steps: int = param(5, "steps of gradient descent", at_least=0)
    server_lr: float = param(0.05, "rate of these steps", above=0)

    def summed(self) -> Summed | None:
        """The server asks each client's model."""
        return None

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Gradient descent on KL(mean of softmax(clients) ‖ student)."""
        assert server.model is not None
        assert server.public is not None
        model, x = server.model, server.public[: self.images]
        weights = dict(super().aggregate(uploads, server).weights)
        answers = torch.vmap(lambda state: model(x, state, train=False).logits)(dict(uploads.weights))
        wanted = answers.softmax(-1).mean(0)
        learned = {name: weights[name] for name in model.weights}
        for _ in range(self.server_steps):
            slopes = torch.func.grad(divergence)(learned, weights, model, x, wanted)
            learned = {name: value - self.server_lr * slopes[name] for name, value in learned.items()}
        return Broadcast({name: learned.get(name, value) for name, value in weights.items()})


def divergence(
    learned: Mapping[str, Tensor], weights: Mapping[str, Tensor], model: Net, x: Tensor, wanted: Tensor
) -> Tensor:
    """The cross-entropy of what is wanted, which differs from KL by a constant."""
    logits = model(x, {**weights, **learned}, train=False).logits
    return -(wanted * logits.log_softmax(-1)).sum(-1).mean()
