"""Full covariances of classes: clients send sums of outer products, the server the covariance of all data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Collect, Server, Summed, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class ClassCovariances(FedAvg):
    """Features are pulled to their class's mean by the Mahalanobis distance."""

    name: ClassVar[str] = "class-covariances"
    collect: Collect = "eval-pass"

    strength: float = param(0.1, "weight of the pull", at_least=0)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + strength · (z − μ)ᵀ (Σ + I)⁻¹ (z − μ) / D."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        if "means" not in turn.received.numbers:  # the first round
            return task
        means, covariances = turn.received.numbers["means"], turn.received.numbers["covariances"]
        size = means.shape[-1]
        inverse = torch.linalg.inv(covariances + torch.eye(size, dtype=means.dtype, device=means.device))
        away = out.features - means[batch.y]
        return task + self.strength * torch.einsum("bi,bij,bj->b", away, inverse[batch.y], away) / size

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Weights; of every class n, Σ z and Σ z zᵀ."""
        z = trained.features
        member = (trained.labels.unsqueeze(-1) == torch.arange(trained.classes, device=z.device)).to(z.dtype)
        products = torch.einsum("nbc,nbi,nbj->ncij", member, z, z)
        sums = {"numbers": member.sum(1), "features": member.mT @ z, "products": products}
        return replace(super().upload(trained, turn), sums=sums)

    def summed(self) -> Summed | None:
        """It is sums and means."""
        return Summed(self.averaging)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """μ = Σ z / n and Σ z zᵀ / n − μ μᵀ; zeros for a class that nobody holds."""
        numbers, features, products = (uploads.sums[name].sum(0) for name in ("numbers", "features", "products"))
        many = numbers.clamp(min=1)
        means = features / many.unsqueeze(-1)
        covariances = products / many.view(-1, 1, 1) - means.unsqueeze(-1) * means.unsqueeze(-2)
        known = {"means": means, "covariances": covariances}
        return Broadcast(super().aggregate(uploads, server).weights, numbers=known)
