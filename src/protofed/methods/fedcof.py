"""FedCOF: Covariances for Free: Exploiting Mean Distributions for Training-free Federated Learning.

Goswami, Magistri, Wang, Twardowski, Bagdanov and van de Weijer, NeurIPS 2025, arXiv 2412.14326.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, Trained, Turn, param
from protofed.methods.one_shot import FixedFeatures
from protofed.methods.server.client_tables import with_rows
from protofed.methods.server.closed_form import lengths, ridge
from protofed.models.linear_head import as_head
from protofed.prototypes import Prototypes, class_means


@dataclass(frozen=True)
class FedCOF(FixedFeatures):
    """Ridge regression whose covariances the server estimates from how the clients' class means scatter."""

    name: ClassVar[str] = "fedcof"
    paper: ClassVar[str] = "Goswami et al., NeurIPS 2025"
    link: ClassVar[str] = "https://arxiv.org/abs/2412.14326"
    up: ClassVar[str] = "class means"

    gamma: float = param(1.0, "γ of the shrinkage; 1 for SqueezeNet, 0.1 for MobileNetV2", at_least=0)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """μ_{k,c} with n_{k,c}."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:  # noqa: ARG002
        """Class means alone; the same in every turn."""
        return Upload({}, self.prototypes(trained))

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """The head from the class means of all clients that ever sent some, each once."""
        means, clock = uploads.prototypes["means"], server.clock
        vectors, counts = means.class_mean().double(), means.counts.squeeze(-1).double()
        who = torch.tensor(clock.who, device=counts.device)
        kept = {
            name: server.previous.kept.get(name, new.new_zeros(clock.clients, *new.shape[1:])).index_put((who,), new)
            for name, new in (("means", vectors), ("counts", counts))
        }
        return self._with(kept, server.previous)

    def with_room(self, broadcast: Broadcast, clients: int) -> Broadcast:
        """A new client has sent no means."""
        return replace(broadcast, kept={name: with_rows(one, clients) for name, one in broadcast.kept.items()})

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast:  # noqa: ARG002
        """Each client's means are kept by themselves."""
        kept = {name: value.index_fill(0, torch.tensor([client]), 0) for name, value in broadcast.kept.items()}
        return self._with(kept, broadcast)

    def _with(self, kept: Mapping[str, Tensor], previous: Broadcast) -> Broadcast:
        return Broadcast(as_head(self._classifier(kept["means"], kept["counts"]), previous.weights), kept=kept)

    def _classifier(self, means: Tensor, counts: Tensor) -> Tensor:
        """W = G⁻¹ B, rows of length 1, with G = Σ_c (n_c − 1) Σ_c + n μ μᵀ and B_c = n_c μ_c.

        Σ_c = 1/(K_c − 1) Σ_k n_{k,c} (μ_{k,c} − μ_c)(μ_{k,c} − μ_c)ᵀ + γI; of a class with one holder, γI. Where no
        class has two samples, I stands for Σ_c (n_c − 1) Σ_c, which is 0: G = n μ μᵀ would make all rows the same.
        """
        number, holders = counts.sum(0), (counts > 0).sum(0)  # n_c, K_c
        sums = torch.einsum("kc,kcd->cd", counts, means)
        centres = sums / number.clamp(min=1).unsqueeze(-1)
        weight = (number - 1).clamp(min=0)  # of a class's covariance; one that nobody holds has none
        scale = (weight / (holders - 1).clamp(min=1) * counts).sqrt().unsqueeze(-1)
        apart = (scale * (means - centres)).flatten(0, 1)  # [K·C, D]
        spread = torch.where(weight.sum() > 0, self.gamma * weight.sum(), 1)
        gram = apart.mT @ apart + spread * torch.eye(apart.shape[-1]).to(apart)
        overall = sums.sum(0) / number.sum().clamp(min=1).sqrt()
        found = ridge(gram + torch.outer(overall, overall), sums.mT).mT
        return found / lengths(found)
