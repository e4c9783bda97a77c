"""Like FedTGP: the server does not average prototypes, it trains them against those that clients sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, Summed, param
from protofed.methods.fedproto import FedProto
from protofed.prototypes import Prototypes


@dataclass(frozen=True)
class TrainedPrototypes(FedProto):
    """Prototypes are pulled to the clients' means of their class and pushed from those of others."""

    name: ClassVar[str] = "trained-prototypes"

    margin: float = param(1.0, "how much nearer the own class should be", at_least=0)
    server_steps: int = param(20, "steps of gradient descent in a round", at_least=0)
    server_lr: float = param(0.1, "rate of these steps", above=0)

    def summed(self) -> Summed | None:
        """The server compares each client's means with its prototypes."""
        return None

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Gradient descent from the last prototypes, or from a draw."""
        sent = uploads.prototypes["means"]
        old = server.previous.prototypes.get("global")
        if old is None:
            drawn = torch.randn(sent.vectors.shape[1:], generator=server.draws("prototypes"), dtype=torch.float64)
            old = Prototypes(drawn.to(sent.vectors), torch.ones_like(sent.counts[0]))
        found = old.vectors.squeeze(1).detach()
        for _ in range(self.server_steps):
            with torch.enable_grad():
                held = found.requires_grad_()
                (slope,) = torch.autograd.grad(self.server_loss(held, sent), held)
            found = (found - self.server_lr * slope).detach()
        return Broadcast(prototypes={"global": Prototypes(found.unsqueeze(1), old.counts)})

    def server_loss(self, found: Tensor, sent: Prototypes) -> Tensor:
        """The mean over sent prototypes of softplus(margin + distance to its class − distance to each other)."""
        apart = torch.cdist(sent.class_mean(), found)  # [N, C, C]
        own = apart.diagonal(dim1=1, dim2=2).unsqueeze(-1)
        others = ~torch.eye(len(found), dtype=torch.bool, device=found.device)
        terms = softplus(self.margin + own - apart) * others * sent.present.unsqueeze(-1)
        return terms.sum() / sent.present.sum().clamp(min=1)
