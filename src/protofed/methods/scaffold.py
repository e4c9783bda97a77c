"""SCAFFOLD: gradients corrected by control variates of client and server.  Karimireddy et al., ICML 2020.

"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", arXiv 1910.06378. Variates by option II.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, Averaging, Batch, Server, Summed, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.optimisers import gradient_weight
from protofed.methods.server.model_distances import as_vectors, from_vector, parameters
from protofed.models.net import Net


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg whose clients correct their gradients by how theirs differ from everybody's."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    link: ClassVar[str] = "https://arxiv.org/abs/1910.06378"
    up: ClassVar[str] = "weights, change of the control variate"
    down: ClassVar[str] = "weights, control variate"

    averaging: Averaging = param("uniform", AVERAGING)  # Algorithm 1
    server_lr: float = param(1.0, "η_g, 1 in the paper's runs", above=0)
    divisor: Literal["momentum", "steps"] = param(
        "momentum", "of an update: η_l times what its steps add up to with momentum; steps: η_l K, as printed"
    )

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """c_i = 0 at first."""
        return {name: torch.zeros_like(value) for name, value in parameters(weights).items()}

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + ⟨c − c_i, y − x⟩, whose gradient is Eq. 3's g_i(y) + c − c_i."""
        task = super().loss(model, batch, turn)
        c, mine, x = turn.received.numbers, turn.memory, turn.received.weights
        if not c:  # the first round, in which all are 0
            return task
        return task + sum(((c[name] - mine[name]) * (y - x[name])).sum() for name, y in model.weights.items())

    def change(self, trained: Trained, turn: Turn) -> dict[str, Tensor]:
        """Eq. 4, option II: c_i⁺ − c_i = (x − y_i) / (η_l K) − c."""
        rho = turn.momentum if self.divisor == "momentum" else 0.0
        length = turn.lr * gradient_weight(turn.steps, rho)
        c, x = turn.received.numbers, turn.received.weights
        found = {}
        for name, mine in turn.memory.items():
            update = x[name] - trained.weights[name]
            each = length.to(mine.dtype).view(-1, *(1,) * (mine.dim() - 1))
            found[name] = update / each - c.get(name, torch.zeros_like(mine))
        return found

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        """c_i⁺."""
        return {name: turn.memory[name] + moved for name, moved in self.change(trained, turn).items()}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """y_i, and c_i⁺ − c_i as one vector, of which the server needs only the sum."""
        sent = super().upload(trained, turn)
        change = self.change(trained, turn)
        return Upload(sent.weights, sent.prototypes, sent.numbers, {"variate": as_vectors(change)} if change else {})

    def summed(self) -> Summed | None:
        """Eq. 5 has sums only."""
        return Summed(self.averaging)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Eq. 5: x + η_g · mean of (y_i − x), statistics averaged; c + 1/N Σ_i (c_i⁺ − c_i) over all N clients."""
        mean, old = super().aggregate(uploads, server).weights, server.previous
        moved = {
            name: value + (self.server_lr - 1) * (value - old.weights[name]) for name, value in parameters(mean).items()
        }
        change = from_vector(uploads.sums["variate"].sum(0) / server.clock.clients, parameters(mean))
        c = {name: old.numbers.get(name, torch.zeros_like(value)) + value for name, value in change.items()}
        return Broadcast({**mean, **moved}, numbers=c)
