"""FedPCL: clients contrast their features with every client's prototypes.  Tan et al., NeurIPS 2022, arXiv 2209.10083.

No weights are shared. The paper trains a small head on frozen backbones; here a client trains its whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.optim import Optimizer

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Trained, Turn, param
from protofed.methods.local import Local
from protofed.methods.optimisers import Adam
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means, mean_over_holders, pad_with_class_mean


@dataclass(frozen=True)
class FedPCL(Local):
    """Features are contrasted with the mean prototypes and with each client's own; no weights are shared."""

    name: ClassVar[str] = "fedpcl"
    paper: ClassVar[str] = "Tan et al., NeurIPS 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2209.10083"
    up: ClassVar[str] = "class means"
    down: ClassVar[str] = "mean prototypes, all clients' class means"
    score: ClassVar[str] = "own/own/nearest"

    reading: Literal["paper", "code"] = param("paper", "features look for their prototype; code: the other way round")
    temperature: float = param(0.07, "τ of the contrasts", above=0)
    collect: Collect = param("eval-pass", COLLECT)

    def optimiser(self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> Optimizer:
        """Adam, without `momentum`; the paper's lr is 1e-3 and its weight decay 1e-4."""
        del momentum
        return Adam(parameters, lr=lr, weight_decay=weight_decay, fused=True)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """L_g + L_p, without CE; CE alone while there are no prototypes."""
        if "sets" not in turn.received.prototypes:
            return super().loss(model, batch, turn)
        sets, mean = (turn.received.prototypes[name] for name in ("sets", "global"))
        z = normalize(model(batch.x).features, dim=-1, eps=1e-8)
        if self.reading == "code":
            return anchored(z, batch, sets, self.temperature)
        return entropy(z, batch.y, mean, self.temperature) + entropy(z, batch.y, sets, self.temperature)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Class means of unit features, which are not unit themselves."""
        return {"sets": class_means(normalize(trained.features, dim=-1, eps=1e-8), trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:  # noqa: ARG002
        """The plain mean over holders, and every participant's set."""
        return Broadcast({}, {**uploads.prototypes, "global": mean_over_holders(uploads.prototypes["sets"])})

    def pools(self) -> bool:
        """Every client's prototypes, and their mean."""
        return True

    def receive(self, broadcast: Broadcast) -> Broadcast:
        """A class missing in a client's set is that of the mean; padding is never sent."""
        sets = broadcast.prototypes.get("sets")
        return broadcast if sets is None else Broadcast({}, {**broadcast.prototypes, "sets": pad_with_class_mean(sets)})


def entropy(z: Tensor, labels: Tensor, sets: Prototypes, temperature: float) -> Tensor:
    """Cross-entropy over the classes c of z·u_c/τ, [C, 1, D]; of several sets, [N, C, 1, D], the mean."""
    logits = z @ sets.vectors.squeeze(-2).mT / temperature  # [..., B, C]
    logits = logits.masked_fill(~sets.present.unsqueeze(-2), torch.finfo(logits.dtype).min)
    found = logits.logsumexp(-1) - logits[..., torch.arange(len(labels), device=labels.device), labels]
    return torch.where(sets.present[..., labels], found, 0).reshape(-1, len(labels)).mean(0)


def anchored(z: Tensor, batch: Batch, sets: Prototypes, temperature: float) -> Tensor:
    """Σ_i −mean_{p: y_p = y_b} log softmax_{a ≠ b}(u_{i,y_b}·z_a/τ)[p]: position b's prototype looks for its class."""
    logits = sets.vectors[:, batch.y, 0] @ z.T / temperature  # [N, B, B]: anchor b, feature a
    others = batch.mask & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    positive = others & (batch.y.unsqueeze(-1) == batch.y)
    number = positive.sum(-1)
    everyone = logits.masked_fill(~others, torch.finfo(logits.dtype).min).logsumexp(-1)
    found = everyone - (logits * positive).sum(-1) / number.clamp(min=1)
    return torch.where(sets.present[:, batch.y] & (number > 0), found, 0).sum(0)
