"""FedProx: FedAvg whose clients stay near the received weights.  Li et al., MLSys 2020, arXiv 1812.06127."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.methods.base import Batch, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg plus a proximal term on the weights."""

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    link: ClassVar[str] = "https://arxiv.org/abs/1812.06127"

    mu: float = param(0.01, "μ; tuned in {0.001, 0.01, 0.1, 1}", at_least=0)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + (μ/2) |w − w_t|², over trainable parameters."""
        received = turn.received.weights
        drift = sum((weight - received[name]).square().sum() for name, weight in model.weights.items())
        return super().loss(model, batch, turn) + self.mu / 2 * drift
