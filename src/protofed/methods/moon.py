"""MOON: features near the global model's, far from the client's last ones.  Li et al., CVPR 2021, arXiv 2103.16257.

The contrast is on the model's features, as in RethinkFL's port; `projection` adds the official code's projection head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.models.projection import Projected


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg plus a contrast of features: towards the received model's, away from the client's previous model's."""

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li et al., CVPR 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2103.16257"
    keeps_previous: ClassVar[bool] = True

    mu: float = param(5.0, "μ; 5 on CIFAR-10, 1 on CIFAR-100 and Tiny-ImageNet", at_least=0)
    temperature: float = param(0.5, "τ of the contrast", above=0)
    projection: bool = param(False, "the paper's two-layer head to 256-d features, in front of the classifier")

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        """With the projection head, if asked for."""
        return Projected(module, classes) if self.projection else module

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 3 in CE + μ · contrast: −log e^{cos(z, z_glob)/τ} / (e^{cos(z, z_glob)/τ} + e^{cos(z, z_prev)/τ})."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        if self.mu == 0:
            return task
        with torch.no_grad():
            received = model(batch.x, turn.received.weights, train=False).features
            previous = model(batch.x, turn.previous, train=False).features
        towards, away = (cosine_similarity(out.features, z, dim=-1) / self.temperature for z in (received, previous))
        # Official code: exactly 0 in a client's first turn, which has no previous model.
        contrast = torch.where(turn.taken > 0, softplus(away - towards), 0)
        return task + self.mu * contrast
