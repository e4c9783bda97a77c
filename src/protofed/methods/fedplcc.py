"""FedPLCC: FedPLVM whose clusters count by their samples.  Kuang et al., arXiv 2409.18578.

Small outlying clusters get small weights, and a feature is pulled only to the nearer part of its class's clusters.
Table V: no L_contra is `lambda1=0 lambda2=1000`, no L_corr `ratio=0`, neither `lambda1=0`, w = 1 `cluster_weights=one`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Collect, Trained, Turn, cross_entropy
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

    lambda1: float = 100.0  # λ1; 100, 20, 1 on Digit-5, Office-10, DomainNet
    ratio: float = 10.0  # λ2 / λ1
    lambda2: float | None = None  # λ2, if not ratio · λ1
    temperature: float = 0.07  # τ; "best τ = 0.55", lower than 0.07, is probably 0.055
    alpha: float = 0.5  # α
    phi: float = 0.5  # φ; 1: every cluster pulls
    cluster_weights: ClusterWeights = "samples"  # W; Table V's w = 1: one, or equal
    centroids: Centroids = "unweighted"  # of the server's clusters; the paper does not say
    collect: Collect = "eval-pass"

    def __post_init__(self) -> None:
        for name in ("lambda1", "ratio", "lambda2"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(name, value, "it must be 0 or more")
        for name in ("temperature", "alpha"):
            if getattr(self, name) <= 0:
                raise UserError(name, getattr(self, name), "it must be above 0")
        if not 0 < self.phi <= 1:
            raise UserError("phi", self.phi, "it must be above 0 and at most 1")

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

    def aggregate(self, uploads: Upload, previous: Broadcast, clock: Clock) -> Broadcast:
        """Eq. 10: average the weights; FINCH* adds up the weights of a cluster; the loss divides by the class's sum."""
        averaged = super().aggregate(uploads, previous, clock)
        return Broadcast(averaged.weights, {"clusters": finch_pool(uploads.prototypes["local"], self.centroids)})

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The cluster prototypes."""
        return broadcast.prototypes.get("clusters")
