"""FedPAC: Personalized Federated Learning with Feature Alignment and Classifier Collaboration.

Xu, Tong and Huang, ICLR 2023, arXiv 2306.11867.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Batch, Collect, Phase, Server, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.client_tables import with_rows
from protofed.methods.server.mixtures import head_statistics, mixtures
from protofed.models.linear_head import WEIGHT, is_head
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means, distance, mean_over_holders

HEADS = "heads/"


@dataclass(frozen=True)
class FedPAC(FedAvg):
    """A common body with FedProto's pull, and for each client its own mixture of all heads."""

    name: ClassVar[str] = "fedpac"
    paper: ClassVar[str] = "Xu et al., ICLR 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2306.11867"
    up: ClassVar[str] = "weights, class means, statistics of features"
    down: ClassVar[str] = "weights with the client's own head, mean prototypes"
    score: ClassVar[str] = "own/own/head"
    prepares: ClassVar[bool] = True
    linear_head: ClassVar[bool] = True

    lam: float = param(1.0, "λ of the pull; 1 in the public code", at_least=0)
    head_epochs: int = param(1, "epochs of the head, before those of the body; 1 in the paper", at_least=1)
    collect: Collect = param("eval-pass", COLLECT)

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The head with the body frozen, then the body with the head frozen."""
        return [Phase(self.head_epochs, is_head), Phase(epochs, lambda name: not is_head(name))]

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:
        """What `mixtures` takes: h and v of the received model's features."""
        return head_statistics(features, labels, len(received.weights[WEIGHT]))

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE; while the body is trained, CE + λ · the mean squared distance to the class's global mean."""
        out, known = model(batch.x), turn.received.prototypes.get("global")
        task = cross_entropy(out.logits, batch.y)
        if known is None or turn.phase == 0:
            return task
        return task + self.lam * distance(out.features, batch.y, known, "mse")

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Class means after training."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Also h and v."""
        sent = super().upload(trained, turn)
        return Upload(sent.weights, sent.prototypes, {**sent.numbers, **turn.prepared})

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Bodies and prototypes by samples; participant i's head is Σ_j α_j w_j, α the optimum of `mixtures`."""
        weights, previous, clock = super().aggregate(uploads, server).weights, server.previous, server.clock
        parts = mixtures(uploads.numbers["h"].flatten(1), uploads.numbers["v"])
        who, kept = torch.tensor(clock.who, device=parts.device), {}
        for name in filter(is_head, weights):
            sent = uploads.weights[name]
            mixed = torch.tensordot(parts.to(sent.dtype), sent, dims=1)
            heads = with_rows(previous.kept.get(HEADS + name, sent[:0]), clock.clients, fill=previous.weights[name])
            kept[HEADS + name] = heads.index_put((who,), mixed)  # who never took part has the common head
        return Broadcast(weights, {"global": mean_over_holders(uploads.prototypes["means"], "samples")}, kept=kept)

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast:  # noqa: ARG002
        """Its head becomes the average, as of one that has just joined; the others' are still mixtures with it."""
        known, gone = broadcast.kept, (torch.tensor(client),)
        kept = {n: known[n].index_put(gone, broadcast.weights[n.removeprefix(HEADS)]) for n in known}
        return replace(broadcast, kept=kept)

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:
        """With the client's own head; with the average of all for one that has just joined."""
        heads = {n.removeprefix(HEADS): table[client] for n, table in broadcast.kept.items() if client < len(table)}
        return Broadcast({**broadcast.weights, **heads}, broadcast.prototypes) if heads else broadcast
