"""FedAvg whose clients take AdamW, as torch has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class AdamWClients(FedAvg):
    """Another optimiser at the client."""

    name: ClassVar[str] = "adamw-clients"

    def optimiser(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float,  # noqa: ARG002
        weight_decay: float,
    ) -> torch.optim.Optimizer:
        """AdamW with torch's betas."""
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)
