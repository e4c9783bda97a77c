"""FPL: the server clusters the clients' class means by FINCH.  Huang et al., CVPR 2023.

A feature is contrasted with the clusters, which keep domains apart, and pulled to the mean of its class's clusters,
the unbiased prototype, to which every cluster contributes the same however many clients it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means, cluster_contrast, distance, finch_pool


@dataclass(frozen=True)
class FPL(FedAvg):
    """Class means are clustered by FINCH; contrast with the clusters, pull to their mean."""

    name: ClassVar[str] = "fpl"
    paper: ClassVar[str] = "Huang et al., CVPR 2023"
    link: ClassVar[str] = (
        "https://openaccess.thecvf.com/content/CVPR2023/html/"
        "Huang_Rethinking_Federated_Learning_With_Domain_Shift_A_Prototype_View_CVPR_2023_paper.html"
    )
    up: ClassVar[str] = "weights, class means"
    down: ClassVar[str] = "weights, cluster prototypes"
    score: ClassVar[str] = "global/all/head"

    temperature: float = param(0.02, "τ of CPCL", above=0)
    # The paper has 1, for ResNet-10, whose features are long; the gradient of cos/0.02 grows as they get shorter, and
    # with 1 an MLP may diverge.
    contrast_weight: float = param(0.1, "of CPCL; the paper: 1, and 0 in its ablation", at_least=0)
    pull_weight: float = param(1.0, "of UPCR; 0: without it", at_least=0)
    pull: Literal["mean", "sum"] = param("mean", "over coordinates: public code; sum: paper")
    collect: Collect = param("last-epoch", COLLECT)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + L_CPCL + L_UPCR."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        clusters = turn.received.prototypes.get("clusters")
        if clusters is None:  # first round
            return task
        contrast = cluster_contrast(out.features, batch.y, clusters, self.temperature)
        pull = distance(out.features, batch.y, clusters, "mse")  # to the mean of the class's clusters
        if self.pull == "sum":
            pull = pull * out.features.shape[-1]
        return task + self.contrast_weight * contrast + self.pull_weight * pull

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Class means."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Average the weights; cluster each class's means by FINCH."""
        averaged = super().aggregate(uploads, server)
        return Broadcast(averaged.weights, {"clusters": finch_pool(uploads.prototypes["means"])})

    def pools(self) -> bool:
        """Every client's prototypes, then clustered."""
        return True

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The cluster prototypes."""
        return broadcast.prototypes.get("clusters")
