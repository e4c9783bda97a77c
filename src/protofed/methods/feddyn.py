"""FedDyn: a regulariser that moves each client's optimum to everybody's.  Acar et al., ICLR 2021, arXiv 2111.04263.

"Federated Learning Based on Dynamic Regularization".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, Averaging, Batch, Server, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.model_distances import parameters
from protofed.models.net import Net


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """FedProx with a linear term of the client's own, which cancels its gradient where the federation converges."""

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2111.04263"
    advice: ClassVar[str] = "try a larger --set alpha, or a smaller --lr"

    averaging: Averaging = param("uniform", AVERAGING)  # Algorithm 1
    alpha: float = param(0.1, "α; tuned in {0.001, 0.01, 0.1}, 0.01 on CIFAR-10", above=0)

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """∇L_k = 0 at first."""
        return {name: torch.zeros_like(value) for name, value in parameters(weights).items()}

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 1: CE − ⟨∇L_k, θ − θ_t⟩ + (α/2) |θ − θ_t|²; the paper's linear term lacks the constant θ_t."""
        received, state = turn.received.weights, turn.memory
        moved = {name: weight - received[name] for name, weight in model.weights.items()}
        drift = sum(change.square().sum() for change in moved.values())
        pull = sum((state[name] * moved[name]).sum() for name in moved if name in state)
        return super().loss(model, batch, turn) + self.alpha / 2 * drift - pull

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        """∇L_k ← ∇L_k − α (θ_k − θ_t), the first-order condition of Eq. 1."""
        received = turn.received.weights
        return {
            name: state - self.alpha * (trained.weights[name] - received[name]) for name, state in turn.memory.items()
        }

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """State h ← h − (α/m) Σ_k (θ_k − θ_t) over all m clients, θ = mean of θ_k − h/α; statistics are averaged."""
        mean, old = super().aggregate(uploads, server).weights, server.previous
        h = {}
        for name, weights in parameters(uploads.weights).items():
            moved = (weights - old.weights[name]).sum(0) / server.clock.clients
            h[name] = old.kept.get(name, torch.zeros_like(moved)) - self.alpha * moved
        return Broadcast({**mean, **{name: mean[name] - state / self.alpha for name, state in h.items()}}, kept=h)
