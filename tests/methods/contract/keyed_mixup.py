"""FedAvg with mixup: every sample is mixed with another of its batch, by draws that have an address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.randomness import uniform


@dataclass(frozen=True)
class KeyedMixup(FedAvg):
    """λ and the partner are drawn once a step; the partner is so many real samples further on."""

    name: ClassVar[str] = "keyed-mixup"

    strength: float = param(0.4, "λ is 1 less up to this", at_least=0, at_most=1)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """λ CE(y) + (1 − λ) CE(y'), of λ x + (1 − λ) x'."""
        share = (1 - self.strength * uniform(turn.key, 0, ())).to(batch.x.dtype)
        real = batch.mask.sum()
        further = (uniform(turn.key, 1, ()) * real).long()
        partner = (torch.arange(len(batch.y), device=batch.y.device) + further) % real
        logits = model(share * batch.x + (1 - share) * batch.x[partner]).logits
        return share * cross_entropy(logits, batch.y) + (1 - share) * cross_entropy(logits, batch.y[partner])
