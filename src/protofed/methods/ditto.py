"""Ditto: FedAvg and, beside it, a personal model near the average.  Li et al., ICML 2021, arXiv 2012.04221.

"Ditto: Fair and Robust Federated Learning Through Personalization". A turn has two phases, one for each model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from protofed.methods.base import Batch, Phase, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.models.twin import Twin

PERSONAL, AVERAGE = "personal.", "average."


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and a personal model at each client that is held to the average."""

    name: ClassVar[str] = "ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2012.04221"
    score: ClassVar[str] = "own/own/personal"
    rule: ClassVar[str] = "personal"

    lam: float = param(1.0, "λ; from {0.1, 1, 2} in the public code, where 0 is a local model", at_least=0)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """Two copies: w and v_k, which starts as w."""
        return Twin(module)

    def shares(self, name: str) -> bool:
        """All but the personal model."""
        return not name.startswith(PERSONAL)

    def does_without(self, name: str) -> bool:
        """The average is whole without it."""
        return name.startswith(PERSONAL)

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Algorithm 1: the client's w as in FedAvg, then v_k for as many epochs."""
        return [Phase(epochs, self.shares), Phase(epochs, self.does_without)]

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE of w; in the second phase the objective h_k: CE of v_k + (λ/2) |v_k − w_t|², w_t as received."""
        if turn.phase == 0:
            return super().loss(model, batch, turn)
        task = cross_entropy(model(batch.x, personal=True).logits, batch.y)
        own = {name.removeprefix(PERSONAL): v for name, v in model.weights.items() if name.startswith(PERSONAL)}
        drift = sum((v - turn.received.weights[AVERAGE + name]).square().sum() for name, v in own.items())
        return task + self.lam / 2 * drift

    def answer(self, output: Output, turn: Turn) -> Tensor:  # noqa: ARG002
        """By the personal model."""
        return output.more["personal"]
