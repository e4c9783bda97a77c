"""FedNova: averages of updates that are divided by how many steps they took.  Wang et al., NeurIPS 2020.

"Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", arXiv 2007.07481.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.optimisers import gradient_weight
from protofed.methods.server.model_distances import parameters


@dataclass(frozen=True)
class FedNova(FedAvg):
    """FedAvg in which a client that takes more steps does not count for more."""

    name: ClassVar[str] = "fednova"
    paper: ClassVar[str] = "Wang et al., NeurIPS 2020"
    link: ClassVar[str] = "https://arxiv.org/abs/2007.07481"
    up: ClassVar[str] = "weights, norm of its steps"

    divisor: Literal["momentum", "steps"] = param(
        "momentum", "of an update: ‖a_i‖₁ of SGD with momentum, the paper's; steps: τ_i, whatever the momentum"
    )

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """w_i and ‖a_i‖₁ (Section 3), the sum of the weights that τ_i steps give to their gradients."""
        sent = super().upload(trained, turn)
        norm = gradient_weight(turn.steps, turn.momentum if self.divisor == "momentum" else 0.0)
        return Upload(sent.weights, sent.prototypes, {**sent.numbers, "divisor": norm}, sent.sums)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Section 4: w + τ_eff Σ_i p_i (w_i − w) / ‖a_i‖₁ with τ_eff = Σ_i p_i ‖a_i‖₁; statistics are averaged."""
        average = super().aggregate(uploads, server).weights
        samples = self.importance(uploads).to(torch.float64)
        norm = uploads.numbers["divisor"].clamp(min=1)  # that of one step
        # τ_eff / ‖a_i‖₁ is exactly 1 for equal steps, so that what is added to the average is then exactly 0.
        scale = (samples * (norm / norm.unsqueeze(-1))).sum(-1) / samples.sum()
        extra = samples / samples.sum() * (scale - 1)
        moved = {
            name: average[name] + torch.tensordot(extra.to(tensor.dtype), tensor - server.previous.weights[name], 1)
            for name, tensor in parameters(uploads.weights).items()
        }
        return Broadcast({**average, **moved})
