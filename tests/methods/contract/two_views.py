"""FedAvg and a contrast between two views of every image, drawn by the step's key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.randomness import uniform


@dataclass(frozen=True)
class TwoViews(FedAvg):
    """A view is the image mirrored by chance, with uniform noise."""

    name: ClassVar[str] = "two-views"

    noise: float = param(0.2, "the noise is in ± this", at_least=0)
    temperature: float = param(0.5, "τ", above=0)

    def view(self, x: Tensor, key: Tensor, number: int) -> Tensor:
        """One view of images [B, ...]."""
        mirrored = uniform(key, 2 * number, (len(x),)) < 0.5
        added = self.noise * (2 * uniform(key, 2 * number + 1, tuple(x.shape)) - 1)
        return torch.where(mirrored.view(-1, 1, 1, 1), x.flip(-1), x) + added.to(x.dtype)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE of the first view, and the cross-entropy of finding the second among those of the batch's real samples."""
        one, other = (model(self.view(batch.x, turn.key, number)) for number in (0, 1))
        alike = normalize(one.features, dim=-1) @ normalize(other.features, dim=-1).mT / self.temperature
        alike = alike.where(batch.mask, -torch.inf).where(batch.mask.unsqueeze(-1), 0)
        return cross_entropy(one.logits, batch.y) - alike.log_softmax(-1).diagonal()
