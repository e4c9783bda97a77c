"""FedPLCC: FedPLVM whose clusters count by their samples.  Kuang et al., arXiv 2409.18578.

Small outlying clusters get small weights, and a feature is pulled only to the nearer part of its class's clusters.
Table V: no L_contra is `lambda1=0 lambda2=1000`, no L_corr `ratio=0`, neither `lambda1=0`, w = 1 `cluster_weights=one`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import (
    Centroids,
    ClusterWeights,
    Prototypes,
    cluster_attraction,
    cluster_contrast,
    finch,
    finch_pool,
)


@dataclass(frozen=True)
class FedPLCC(FedAvg):
    """FedPLVM with clusters weighted by their samples and a pull to the nearer part of them."""

    name: ClassVar[str] = "fedplcc"
    paper: ClassVar[str] = "Kuang et al., arXiv 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2409.18578"
    up: ClassVar[str] = "weights, cluster prototypes with their samples"
    down: ClassVar[str] = "weights, clusters of all clients' prototypes with their samples"
    score: ClassVar[str] = "global/all/head"
    advice: ClassVar[str] = "try a smaller weight of the contrast, with --set lambda1, or a smaller --lr"

    # Below the paper's for the reason that FedPLVM's λ is. L_corr, with λ2 = 10 λ1, never stops pulling: chosen by
    # validation on Digit-5, where a small CNN hardly learns with λ1 = 0.1 and not at all with 1.
    lambda1: float = param(0.01, "λ1; the paper: 100, 20, 1 on Digit-5, Office-10, DomainNet", at_least=0)
    ratio: float = param(10.0, "λ2 / λ1", at_least=0)
    lambda2: float | None = param(None, "λ2, if not ratio · λ1", at_least=0)
    temperature: float = param(0.07, 'τ; "best τ = 0.55", lower than 0.07, is probably 0.055', above=0)
    alpha: float = param(0.5, "α: exponent of cosines", above=0)
    phi: float = param(0.5, "φ: part of a class's clusters that pulls; 1: every one", above=0, at_most=1)
    cluster_weights: ClusterWeights = param("samples", "W; Table V's w = 1: one, or equal")
    centroids: Centroids = param("unweighted", "of the server's clusters; the paper does not say")
    collect: Collect = param("eval-pass", COLLECT)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 4: CE + λ1 L_contra + λ2 L_corr (Eqs. 6 and 8)."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        clusters = turn.received.prototypes.get("clusters")
        if clusters is None:  # first round
            return task
        given = out.features, batch.y, clusters
        contrast = cluster_contrast(*given, self.temperature, self.alpha, self.cluster_weights)
        correction = cluster_attraction(*given, self.alpha, self.phi, self.cluster_weights)
        lambda2 = self.ratio * self.lambda1 if self.lambda2 is None else self.lambda2
        return task + self.lambda1 * contrast + lambda2 * correction

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 9: FINCH*; a cluster's weight is its number of samples."""
        return {"local": finch(trained.features, trained.labels, trained.classes)}

    def clusters_features(self) -> bool:
        """As many as FINCH finds."""
        return True

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Eq. 10: average the weights; FINCH* adds up the weights of a cluster; the loss divides by the class's sum."""
        averaged = super().aggregate(uploads, server)
        return Broadcast(averaged.weights, {"clusters": finch_pool(uploads.prototypes["local"], self.centroids)})

    def pools(self) -> bool:
        """Every client's prototypes, then clustered."""
        return True

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The cluster prototypes."""
        return broadcast.prototypes.get("clusters")
