"""FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning.

Zhang, Liu, Hua and Cao, AAAI 2024, arXiv 2401.03230.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Collect, Server, param
from protofed.methods.fedproto import FedProto
from protofed.methods.server.trainable_prototypes import Margin, first_layers, margin_of, train, vectors_of
from protofed.prototypes import Prototypes, mean_over_holders

LAYERS = "layers/"


@dataclass(frozen=True)
class FedTGP(FedProto):
    """FedProto whose global prototypes are trained by the server, so that classes lie apart by a margin."""

    name: ClassVar[str] = "fedtgp"
    paper: ClassVar[str] = "Zhang et al., AAAI 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2401.03230"
    up: ClassVar[str] = "class means"
    down: ClassVar[str] = "trained prototypes"
    score: ClassVar[str] = "own/own/nearest"

    lam: float = param(10.0, "λ; 10 in the script, of mean squares; the paper's 0.1 is of metric=l2", at_least=0)
    threshold: float = param(100.0, "τ: the largest margin; 100 in the paper", above=0)
    margin: Margin = param("nearest", "public code; farthest: the largest distance of any two classes")
    server_epochs: int = param(100, "S: passes over the clients' prototypes; 100 in the paper", at_least=1)
    server_lr: float = param(0.01, "of the prototypes at the server; 0.01 in the script", above=0)
    server_batch: int = param(10, "prototypes in a step; 10 in the script", at_least=1)
    collect: Collect = param("eval-pass", COLLECT)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """The contrast L_P: SGD on the round's class means, with the margin δ(t) of their averages."""
        averaged = super().aggregate(uploads, server)  # weights, if shared; and which classes there are
        means, known = uploads.prototypes["means"], averaged.prototypes["global"]
        place = means.filled.squeeze(-1).nonzero()  # [P, 2]: client, class
        layers = {
            name.removeprefix(LAYERS): tensor
            for name, tensor in server.previous.kept.items()
            if name.startswith(LAYERS)
        } or first_layers(len(known.counts), known.vectors.shape[-1], server.draws("start"))
        layers = train(
            {name: tensor.to(means.vectors.device) for name, tensor in layers.items()},
            means.vectors[place[:, 0], place[:, 1], 0],
            place[:, 1],
            margin_of(mean_over_holders(means, self.weighting), self.margin, self.threshold),
            lr=self.server_lr,
            epochs=self.server_epochs,
            batch=self.server_batch,
            draws=server.draws("prototypes"),
        )
        vectors = vectors_of(layers).to(known.vectors).unsqueeze(1)
        trained = Prototypes(torch.where(known.filled.unsqueeze(-1), vectors, 0), known.counts)
        kept = {LAYERS + name: tensor for name, tensor in layers.items()}
        return Broadcast(averaged.weights, {"global": trained}, kept=kept)
