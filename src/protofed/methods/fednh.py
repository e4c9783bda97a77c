"""FedNH: unit prototypes as a fixed classifier, moved by the server.  Dai et al., AAAI 2023, arXiv 2212.02758."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import nn
from torch.nn.functional import normalize

from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, COLLECT, Averaging, Collect, Server, Summed, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.models.normalised_head import NormalisedHead
from protofed.prototypes import Prototypes, class_means, mean_over_holders

W = "head.prototypes"


@dataclass(frozen=True)
class FedNH(FedAvg):
    """A cosine classifier with fixed orthogonal prototypes, which the server moves to the clients' class means."""

    name: ClassVar[str] = "fednh"
    paper: ClassVar[str] = "Dai et al., AAAI 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2212.02758"
    up: ClassVar[str] = "weights of the body, class means"
    down: ClassVar[str] = "weights, prototypes among them"
    score: ClassVar[str] = "global/all/head"
    clip: ClassVar[float | None] = 10.0

    rho: float = param(0.9, "ρ: how much of a prototype stays", at_least=0, at_most=1)
    scale: float = param(20.0, "s at the start; 20 for ResNets, 1 for the small CNN", above=0)
    averaging: Averaging = param("uniform", AVERAGING)
    collect: Collect = param("eval-pass", COLLECT)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        """In place of the linear classifier: logits = s · normalise(z) Wᵀ."""
        module.head = NormalisedHead(cast(int, module.feature_size), classes, self.scale)
        return module

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """μ_{k,c} = normalise(the mean of normalised z)."""
        means = class_means(normalize(trained.features, dim=-1), trained.labels, trained.classes)
        return {"means": Prototypes(normalize(means.vectors, dim=-1), means.counts)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """All but W, which the server knows."""
        sent = super().upload(trained, turn)
        body = {name: tensor for name, tensor in sent.weights.items() if name != W}
        return Upload(body, sent.prototypes, sent.numbers)

    def summed(self) -> Summed | None:
        """Means; classes by their samples."""
        return Summed(self.averaging, "samples")

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """m_c = normalise(Σ_k n_{k,c} μ_{k,c} / Σ_k n_{k,c}),  W_c ← normalise(ρ W_c + (1−ρ) m_c)."""
        body = super().aggregate(uploads, server).weights
        mean = mean_over_holders(uploads.prototypes["means"], "samples")
        old = server.previous.weights[W]
        mixed = self.rho * old + (1 - self.rho) * normalize(mean.class_mean(), dim=-1)
        moves = mean.present & (mixed.norm(dim=-1) > 1e-6)  # ρ = ½ and m_c = −W_c would leave no direction
        return Broadcast({**body, W: torch.where(moves.unsqueeze(-1), normalize(mixed, dim=-1), old)})
