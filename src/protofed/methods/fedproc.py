"""FedProc: a contrast with global class means first, cross-entropy later.  Mu et al., FGCS 2023, arXiv 2109.12273.

There is no public code of the authors; "port" is the one in RethinkFL, by FPL's authors. It learns nothing in its
first round, where it gives cross-entropy no weight and has no prototypes; here cross-entropy then counts in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Clock, Collect, Server, Summed, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means, cluster_contrast, mean_over_holders


@dataclass(frozen=True)
class FedProc(FedAvg):
    """A contrast with the global class means that gives way to cross-entropy round by round."""

    name: ClassVar[str] = "fedproc"
    paper: ClassVar[str] = "Mu et al., Future Generation Computer Systems 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2109.12273"
    up: ClassVar[str] = "weights, class means"
    down: ClassVar[str] = "weights, mean prototypes"
    score: ClassVar[str] = "global/all/head"

    schedule: Literal["paper", "port"] = param("paper", "α_t = 1 − t/T; port: 1 − t/(T − 1)")
    temperature: float = param(1.0, "τ; the port has none", above=0)
    weighting: Literal["uniform", "samples"] = param("uniform", "of a class's holders: port; samples: paper")
    collect: Collect = param("last-epoch", COLLECT)

    def share(self, clock: Clock) -> float:
        """α_t, the contrast's part of the loss; rounds count from 0."""
        last = clock.rounds if self.schedule == "paper" else max(1, clock.rounds - 1)
        return 1 - clock.round / last

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """α_t L_gpc + (1 − α_t) CE; L_gpc is cross-entropy over the cosines with the class means."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        means = turn.received.prototypes.get("global")
        if means is None:  # first round
            return task
        contrast = cluster_contrast(out.features, batch.y, means, self.temperature)
        share = self.share(turn.clock)
        return share * contrast + (1 - share) * task

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Class means."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Average the weights, and each class's means over the clients that hold it."""
        averaged = super().aggregate(uploads, server)
        return Broadcast(averaged.weights, {"global": mean_over_holders(uploads.prototypes["means"], self.weighting)})

    def summed(self) -> Summed | None:
        """Means."""
        return Summed(self.averaging, self.weighting)

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The global class means."""
        return broadcast.prototypes.get("global")
