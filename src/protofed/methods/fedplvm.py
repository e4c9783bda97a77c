"""FedPLVM: clients cluster their features, the server their clusters.  Wang et al., NeurIPS 2024, arXiv 2403.09048.

Several prototypes of a class say how much a client's features vary, which a single mean hides. The similarity is the
cosine to the power of α (α-sparsity), which needs cosines above 0: they are kept at 1e-4 or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Prototypes, cluster_contrast, finch, finch_pool


@dataclass(frozen=True)
class FedPLVM(FedAvg):
    """FINCH clusters at the clients and again at the server; a contrast with them by α-sparsity."""

    name: ClassVar[str] = "fedplvm"
    paper: ClassVar[str] = "Wang et al., NeurIPS 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2403.09048"
    up: ClassVar[str] = "weights, cluster prototypes"
    down: ClassVar[str] = "weights, clusters of all clients' prototypes"
    score: ClassVar[str] = "global/all/head"
    advice: ClassVar[str] = "try a smaller weight of the contrast, with --set lam, or a smaller --lr"

    # Public code: averaging="uniform" where all clients have the same labels, "samples" elsewhere.
    # The paper's 100 is for ResNet-10, whose features are long; the gradient of a cosine grows as they get shorter, and
    # with 100 an MLP or a small CNN diverges. 1 is the largest power of ten with which all of ours finish.
    lam: float = param(1.0, "λ: weight of L_contra + L_corr; the paper: 100", at_least=0)
    temperature: float = param(0.07, "τ of the contrast", above=0)
    alpha: float = param(0.25, "α: exponent of cosines", above=0)
    collect: Collect = param("eval-pass", COLLECT)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + λ (L_contra + L_corr), L_corr = 2 (1 − cos(z, ḡ_y))², ḡ_y the mean of the class's clusters."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        clusters = turn.received.prototypes.get("clusters")
        if clusters is None:  # first round
            return task
        contrast = cluster_contrast(out.features, batch.y, clusters, self.temperature, self.alpha)
        cosine = torch.cosine_similarity(out.features, clusters.class_mean()[batch.y], dim=-1)
        correction = torch.where(clusters.present[batch.y], 2 * (1 - cosine).square(), 0)
        return task + self.lam * (contrast + correction)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """The means of each class's FINCH clusters."""
        return {"local": finch(trained.features, trained.labels, trained.classes)}

    def clusters_features(self) -> bool:
        """As many as FINCH finds."""
        return True

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Average the weights; cluster each class's prototypes, whoever sent them, by FINCH again."""
        averaged = super().aggregate(uploads, server)
        return Broadcast(averaged.weights, {"clusters": finch_pool(uploads.prototypes["local"])})

    def pools(self) -> bool:
        """Every client's prototypes, then clustered."""
        return True

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The cluster prototypes."""
        return broadcast.prototypes.get("clusters")
