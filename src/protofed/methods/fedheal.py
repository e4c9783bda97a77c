"""FedHEAL: inconsistent updates are dropped, clients far from the average count for more.  Chen et al., CVPR 2024.

"Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity", arXiv 2405.16585.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, Averaging, Server, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.client_tables import with_rows
from protofed.methods.server.model_distances import flat, parameters

KEPT = "kept/"


@dataclass(frozen=True)
class FedHEAL(FedAvg):
    """FedAvg of the updates whose direction is the client's usual one, fair to clients that have far to go."""

    name: ClassVar[str] = "fedheal"
    paper: ClassVar[str] = "Chen et al., CVPR 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2405.16585"
    up: ClassVar[str] = "weights, which of them are kept"
    score: ClassVar[str] = "global/all/head"

    averaging: Averaging = param("uniform", AVERAGING + "; where they start")
    threshold: float = param(0.3, "τ: the least consistency of an update that is kept; -1: all", at_least=-1, below=1)
    beta: float = param(0.4, "β: how fast clients' weights follow their distances; 0 for never", at_least=0, at_most=1)

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """The part of its turns in which each parameter fell."""
        return {name: torch.zeros_like(value) for name, value in parameters(weights).items()}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Weights, those whose update is dropped as received; an update is kept if its direction is usual, or new."""
        sent = super().upload(trained, turn)
        weights, masks = dict(sent.weights), {}
        for name, fell in turn.memory.items():
            old, new = turn.received.weights[name], trained.weights[name]
            consistency = torch.where(old >= new, fell, 1 - fell)
            kept = masks[KEPT + name] = (consistency > self.threshold) | (_fit(turn.taken, fell) == 0)
            weights[name] = torch.where(kept, new, old)
        return Upload(weights, sent.prototypes, {**sent.numbers, **masks}, sent.sums)

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        """The mean over all turns, this one included."""
        received = turn.received.weights
        return {
            name: fell + ((received[name] >= trained.weights[name]).to(fell) - fell) / (1 + _fit(turn.taken, fell))
            for name, fell in turn.memory.items()
        }

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Each parameter is averaged over those who kept it, with weights p_k ← p_k + Δ_k.

        Δ_k ← (1 − β) Δ_k + β d_k / Σ_j d_j, where d_k is the length of what is left of a client's update.
        """
        old, who, p = server.previous, list(server.clock.who), self.importance(uploads).to(torch.float64)
        names = sorted(parameters(uploads.weights))  # over a network they come in another order
        far = torch.stack([flat(uploads.weights[name] - old.weights[name]).norm(dim=1) for name in names]).sum(0)
        # p and Δ of every client, 0 of those never seen
        known = with_rows(old.kept.get("weights", p.new_zeros(2, 0)), server.clock.clients, dim=1).clone()
        p = torch.where(known[0, who] > 0, known[0, who], p / p.sum())
        change = (1 - self.beta) * known[1, who] + self.beta * far / far.sum().clamp(min=torch.finfo(far.dtype).tiny)
        known[:, who] = torch.stack([p + change, change])

        mean = self.averaged(uploads.weights, p + change)
        share = (p + change) / (p + change).sum()
        for name in names:
            kept, value, before = uploads.numbers[KEPT + name], mean[name], old.weights[name]
            lost = torch.tensordot(share.to(value.dtype), (~kept).to(value.dtype), 1)  # 0 exactly where all kept it
            mean[name] = torch.where(kept.any(0), value + (value - before) * lost / (1 - lost), before)
        return Broadcast(mean, kept={"weights": known})

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast:  # noqa: ARG002
        """Its p and Δ."""
        return replace(broadcast, kept={"weights": broadcast.kept["weights"].index_fill(1, torch.tensor(client), 0)})


def _fit(turns: Tensor, like: Tensor) -> Tensor:
    return turns.to(like.dtype).view(-1, *(1,) * (like.dim() - 1))
