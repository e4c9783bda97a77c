"""FedAvg with logits shifted by the client's class frequencies (Ren et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.methods.base import Batch, Turn, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class BalancedSoftmax(FedAvg):
    """A class that the client lacks has no part in its softmax."""

    name: ClassVar[str] = "balanced-softmax"

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE of z_c + log n_c; log 0 is -inf, which is no answer."""
        logits = model(batch.x).logits
        return cross_entropy(logits + turn.counts.to(logits.dtype).log(), batch.y)
