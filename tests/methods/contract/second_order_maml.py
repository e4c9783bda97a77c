"""Per-FedAvg with second-order MAML: the loss is that after a step, differentiated through the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class SecondOrderMaml(FedAvg):
    """A model that is good after one step of each client's own."""

    name: ClassVar[str] = "second-order-maml"

    inner_lr: float = param(0.1, "rate of the inner step", at_least=0)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """CE(w − α ∇CE(w)), with the gradient of the gradient."""

        def inner(weights: Mapping[str, Tensor]) -> Tensor:
            each = cross_entropy(model(batch.x, weights, train=False).logits, batch.y)
            return each.where(batch.mask, 0).sum() / batch.mask.sum()

        weights = model.weights
        slopes = torch.func.grad(inner)(weights)
        moved = {name: value - self.inner_lr * slopes[name] for name, value in weights.items()}
        return cross_entropy(model(batch.x, moved).logits, batch.y)
