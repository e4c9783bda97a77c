"""FedProto: class means, never weights; only the feature size is common.  Tan et al., AAAI 2022, arXiv 2105.00243."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Summed, Trained, Turn, cross_entropy, param
from protofed.methods.convergence import Bound, Estimates, Used, fedproto_bounds
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Metric, Prototypes, Weighting, class_means, mean_over_holders
from protofed.prototypes.losses import distance, prototype_distance


@dataclass(frozen=True)
class FedProto(FedAvg):
    """Features are pulled to the mean prototype of their class."""

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al., AAAI 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2105.00243"
    up: ClassVar[str] = "class means"
    down: ClassVar[str] = "mean prototypes"
    score: ClassVar[str] = "own/own/nearest"

    lam: float = param(1.0, "λ; 1 on MNIST and FEMNIST, 0.1 on CIFAR-10", at_least=0)
    metric: Metric = param("mse", "distance of a feature to its prototype")
    per: Literal["sample", "prototype"] = param("sample", "distance per sample: public code; prototype: Eq. 8")
    weighting: Weighting = param("uniform", "of a class's holders; literal: Eq. 6 as printed")
    collect: Collect = param("last-epoch", COLLECT)
    absent: Literal["drop", "keep"] = param("drop", "the prototype of a class that nobody sent this round")
    share_weights: bool = param(False, "RethinkFL's port averages the weights too")
    initial: Literal["common", "own"] = param("common", "weights; own: each client draws its own, as in public code")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_weights and self.initial == "own":
            raise UserError("--set initial", self.initial, "with share_weights all begin with the server's")
        if self.averaging == "prototypes" and not self.share_weights:
            raise UserError("--set averaging", self.averaging, "without share_weights no weights are averaged")

    def shares(self, name: str) -> bool:  # noqa: ARG002
        """No weights, unless asked for."""
        return self.share_weights

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 7: CE + λ · distance to the global prototype of the sample's class."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        prototypes = turn.received.prototypes.get("global")
        if prototypes is None:  # first round
            return task
        if self.per == "sample":
            return task + self.lam * distance(out.features, batch.y, prototypes, self.metric)
        return task + self.lam * prototype_distance(out.features, batch.y, batch.mask, prototypes, self.metric)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 3: class means."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Eq. 6, over the clients that hold the class."""
        fresh = mean_over_holders(uploads.prototypes["means"], self.weighting)
        old = server.previous.prototypes.get("global")
        if self.absent == "keep" and old is not None:
            fresh = Prototypes(
                torch.where(fresh.filled.unsqueeze(-1), fresh.vectors, old.vectors),
                torch.where(fresh.filled, fresh.counts, old.counts),
            )
        return Broadcast(super().aggregate(uploads, server).weights, {"global": fresh})

    def summed(self) -> Summed | None:
        """A mean over holders is one of sums; Eq. 6 as printed divides each term by their number once more."""
        return None if self.weighting == "literal" else Summed(self.averaging, self.weighting)

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """Eq. 4: the nearest global prototype."""
        return broadcast.prototypes.get("global")

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:
        """Corollary 1 and Theorem 2, of clients that share no weights."""
        return [] if self.share_weights else fedproto_bounds(found, used, self.lam)
