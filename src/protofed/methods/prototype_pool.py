"""What MP-, SP- and DP-FedCL share: a pool of every client's prototypes, a contrast with it, inference by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Server, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.prototypes import Prototypes, bound_pool, pad_with_class_mean, pooled_contrast, slot_contrast
from protofed.randomness import key


@dataclass(frozen=True)
class PrototypePool(FedAvg):
    """FedAvg plus a contrast between features and the pool of all clients' prototypes."""

    paper: ClassVar[str] = "Qiao et al., IEEE Internet of Things Journal 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2304.01950"
    up: ClassVar[str] = "weights, prototypes"
    down: ClassVar[str] = "weights, the pool of all clients' prototypes"
    score: ClassVar[str] = "own/all/nearest"

    temperature: float = param(0.07, "τ of L_R", above=0)
    contrast: Literal["slots", "pooled", "none"] = param(
        "slots", "none: the preliminary version, prototypes for inference only"
    )
    ce_weight: float = param(1.0, "weight of CE", at_least=0)
    contrast_weight: float = param(1.0, "weight of L_R", at_least=0)
    collect: Collect = param("eval-pass", COLLECT)
    pool_size: int | None = param(
        None, "most prototypes per class in the pool; the server clusters those of a larger one", at_least=1
    )

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Eq. 12: CE + L_R."""
        out = model(batch.x)
        task = self.ce_weight * cross_entropy(out.logits, batch.y)
        pool = turn.received.prototypes.get("pool")
        if pool is None or self.contrast == "none":
            return task
        contrast = slot_contrast if self.contrast == "slots" else pooled_contrast
        return task + self.contrast_weight * contrast(out.features, batch.y, pool, self.temperature)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Eqs. 8-9: average the weights, put the prototypes side by side; ours: no more than `pool_size` of a class."""
        pool = uploads.prototypes["local"]
        if self.pool_size is not None:
            pool = bound_pool(pool, self.pool_size, key(server.clock.seed, "pool", server.clock.round))
        return Broadcast(super().aggregate(uploads, server).weights, {"pool": pool})

    def pools(self) -> bool:
        """Every client's prototypes, side by side."""
        return True

    def receive(self, broadcast: Broadcast) -> Broadcast:
        """Eq. 10: the slot-wise loss needs a full grid, so the client pads the pool; padding is never sent."""
        if self.contrast != "slots" or "pool" not in broadcast.prototypes:
            return broadcast
        return Broadcast(broadcast.weights, {"pool": pad_with_class_mean(broadcast.prototypes["pool"])})

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """Eq. 13: the nearest prototype of the unpadded pool."""
        pool = broadcast.prototypes.get("pool")
        return None if pool is None else pool.pooled()

    def sets_are_of_clients(self) -> bool:
        """Not in a bounded pool: there the server's clusters stand where clients stood."""
        return self.pool_size is None
