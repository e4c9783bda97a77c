"""FCCL+: clients agree on public, unlabelled images and distil from their own past.  Huang et al., TPAMI 2023."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, Averaging, Batch, PublicExchange, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.optimisers import Adam
from protofed.models.net import Net


@dataclass(frozen=True)
class FCCLPlus(FedAvg, PublicExchange):
    """Correlated logits and similar features on public images, self-distillation on private ones."""

    name: ClassVar[str] = "fccl-plus"
    paper: ClassVar[str] = "Huang et al., TPAMI 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2309.16286"
    up: ClassVar[str] = "weights; logits and feature similarities of public images"
    down: ClassVar[str] = "weights; their means over clients"
    keeps_previous: ClassVar[bool] = True

    averaging: Averaging = param("uniform", AVERAGING)
    temperature: float = param(0.02, "of similarities", above=0)
    off_diagonal: float = param(0.0051, "weight of correlations between different classes")
    similarity_weight: float = param(3.0, "weight of L_isd")
    distillation_temperature: float = param(3.0, "T; 1 on Office-Caltech", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averaging == "prototypes":
            why = "models are also averaged after the public images, of which there are no class means"
            raise UserError("--set averaging", self.averaging, why)

    def optimiser(
        self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Adam, without `momentum`; for every public batch a new one, as in the public code."""
        del momentum
        return Adam(parameters, lr=lr, weight_decay=weight_decay)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + T² Σ_{c≠y} p'_c log(p'_c / p_c): p' the previous model's, over all classes, the true one left out."""
        logits = model(batch.x).logits
        past = model(batch.x, turn.previous, train=False).logits.detach()
        tempered = self.distillation_temperature
        student, teacher = log_softmax(logits / tempered, -1), log_softmax(past / tempered, -1)
        other = torch.arange(logits.shape[-1], device=logits.device) != batch.y.unsqueeze(-1)
        distilled = tempered**2 * (teacher.exp() * (teacher - student) * other).sum(-1)
        return cross_entropy(logits, batch.y) + torch.where(turn.taken > 0, distilled, 0)

    def public_upload(self, features: Tensor, logits: Tensor) -> Upload:
        """Logits, and the similarity of each image to the others."""
        return Upload(numbers={"logits": logits, "similarity": self._similarity(features)})

    def public_aggregate(self, uploads: Upload) -> Broadcast:
        """Means over the participants."""
        return Broadcast(numbers={name: value.mean(0) for name, value in uploads.numbers.items()})

    def public_loss(self, model: Net, x: Tensor, received: Broadcast) -> Tensor:
        """L_cc = Σ_i (M_ii − 1)² + 0.0051 Σ_{i≠j} (M_ij + 1)², and L_isd = 3 KL(mean similarities ‖ own)."""
        out = model(x)
        correlation = _standardised(out.logits).mT @ _standardised(received.numbers["logits"]) / len(x)
        same = correlation.diagonal()
        apart = (correlation + 1).square().sum() - (same + 1).square().sum()
        mean, own = (log_softmax(rows, -1) for rows in (received.numbers["similarity"], self._similarity(out.features)))
        distance = (mean.exp() * (mean - own)).sum(-1).mean()
        return (same - 1).square().sum() + self.off_diagonal * apart + self.similarity_weight * distance

    def _similarity(self, features: Tensor) -> Tensor:
        """Cos / temperature of each row with every other, [..., B, B - 1]."""
        unit = normalize(features, dim=-1)
        rows = torch.arange(unit.shape[-2], device=unit.device)
        others = (rows.view(-1, 1) + rows[1:]) % len(rows)
        return (unit @ unit.mT).gather(-1, others.expand(*unit.shape[:-1], -1)) / self.temperature


def _standardised(logits: Tensor) -> Tensor:
    return (logits - logits.mean(0)) / (logits.std(0, correction=0) + 1e-6)
