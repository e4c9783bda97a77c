"""FedSC: relational and consistent prototypes.  Wang et al., KDD 2025, doi 10.1145/3711896.3736957.

After the paper's equations: the public code does not compute its objective (docs/methods/fedsc.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Trained, Turn, cross_entropy, param
from protofed.methods.convergence import Bound, Estimates, Used, fedsc_bounds
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means, distance, mean_over_holders
from protofed.prototypes.relations import (
    Likeness,
    consistent_prototypes,
    mean_distances,
    relational_prototypes,
    scaled_contrast,
)


@dataclass(frozen=True)
class FedSC(FedAvg):
    """Contrast with prototypes merged among like-minded clients, and a pull to their weighted mean."""

    name: ClassVar[str] = "fedsc"
    paper: ClassVar[str] = "Wang et al., KDD 2025"
    link: ClassVar[str] = "https://doi.org/10.1145/3711896.3736957"
    up: ClassVar[str] = "weights, class means"
    down: ClassVar[str] = "weights, relational prototypes of all clients, consistent prototypes"
    advice: ClassVar[str] = "try smaller weights, with --set rpcl_weight and cpdr_weight, or a smaller --lr"
    prepares: ClassVar[bool] = True  # U

    neighbours: int = param(2, "M; 0: no merging", at_least=0)
    likeness: Likeness = param("angle", "Eqs. 7-8; the others are those of Table 5")
    temperature: float = param(0.05, "τ of RPCL", above=0)
    U: Literal["paper", "none"] = param("paper", "Eq. 13; none: U = 1")
    weighting: Literal["discrepancy", "uniform"] = param("discrepancy", "e of Eq. 11; uniform: equal for all holders")
    # With the paper's 1 a small CNN learns nothing, or diverges: measured on the method's page.
    rpcl_weight: float = param(0.1, "of RPCL; the paper: 1, and Table 4 switches each term off", at_least=0)
    cpdr_weight: float = param(0.1, "of CPDR; the paper: 1", at_least=0)
    collect: Collect = param("last-epoch", COLLECT)  # as the public code; eval-pass: Algorithm 1

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:
        """Eq. 13's U, once a round; the floor keeps a feature that equals its prototype from dividing by 0."""
        related = received.prototypes.get("relational")
        if related is None or self.U == "none":
            return {}
        return {"U": mean_distances(features, labels, related).clamp(min=1e-3)}

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE + RPCL (Eq. 14) + CPDR (Eq. 15, as a mean of squares)."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        if "relational" not in turn.received.prototypes:  # the first round
            return task
        related, consistent = (turn.received.prototypes[name] for name in ("relational", "consistent"))
        temperature = self.temperature * (turn.prepared["U"] if self.U == "paper" else 1.0)
        rpcl = scaled_contrast(out.features, batch.y, related, temperature)
        cpdr = distance(out.features, batch.y, consistent, "mse")
        return task + self.rpcl_weight * rpcl + self.cpdr_weight * cpdr

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 3: class means, with n_{k,c} as counts."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Eqs. 7-12, over this round's participants."""
        related = relational_prototypes(uploads.prototypes["means"], self.neighbours, self.likeness)
        merge = consistent_prototypes if self.weighting == "discrepancy" else mean_over_holders
        weights = super().aggregate(uploads, server).weights
        return Broadcast(weights, {"relational": related, "consistent": merge(related)})

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:
        """Theorems 2 and 3, which are of both terms as they are."""
        whole = self.rpcl_weight == self.cpdr_weight == 1
        return fedsc_bounds(found, used, self.neighbours) if whole else []
