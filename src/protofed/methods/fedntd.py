"""FedNTD: the global model's opinion of the wrong classes is kept.  Lee et al., NeurIPS 2022, arXiv 2106.03097."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class FedNTD(FedAvg):
    """FedAvg plus distillation of the received model's logits without the true class."""

    name: ClassVar[str] = "fedntd"
    paper: ClassVar[str] = "Lee et al., NeurIPS 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2106.03097"

    beta: float = param(1.0, "β: weight of the distillation", at_least=0)
    temperature: float = param(1.0, "τ; 1 in the paper's runs, 3 in its class's default", above=0)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 4: CE + β τ² KL(q_glob || q) over the C − 1 classes that are not true."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        if self.beta == 0:
            return task
        with torch.no_grad():
            taught = model(batch.x, turn.received.weights, train=False).logits
        teacher, student = (
            log_softmax(not_true(logits, batch.y) / self.temperature, -1) for logits in (taught, out.logits)
        )
        divergence = (teacher.exp() * (teacher - student)).sum(-1)
        return task + self.beta * self.temperature**2 * divergence


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits without that of the true class, [B, C − 1]."""
    columns = torch.arange(logits.shape[-1] - 1, device=logits.device)
    label = labels.unsqueeze(-1)
    return logits.gather(-1, columns + (columns >= label))
