"""FedGH: Heterogeneous Federated Learning with Generalized Global Header.

Yi, Wang, Liu, Shi and Yu, ACM Multimedia 2023, arXiv 2303.13137.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from protofed.messages import Broadcast, Upload
from protofed.methods.base import COLLECT, Collect, Server, Trained, Turn, param
from protofed.methods.local import Local
from protofed.methods.server.head_training import train_head
from protofed.models.linear_head import is_head
from protofed.prototypes import Prototypes, class_means


@dataclass(frozen=True)
class FedGH(Local):
    """Bodies stay at the clients; the server trains the head that all of them get on the clients' class means."""

    name: ClassVar[str] = "fedgh"
    paper: ClassVar[str] = "Yi et al., MM 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2303.13137"
    up: ClassVar[str] = "class means"
    down: ClassVar[str] = "head"
    score: ClassVar[str] = "own/own/head"
    linear_head: ClassVar[bool] = True

    server_lr: float = param(0.01, "η of the head at the server; 0.01 in the public code", above=0)
    server_epochs: int = param(1, "passes over the class means; 1 in the public code", at_least=1)
    server_batch: int = param(1, "class means in a step; 1 in the public code, 10 in HtFLlib", at_least=1)
    collect: Collect = param("eval-pass", COLLECT)

    def shares(self, name: str) -> bool:
        """The head comes from the server; no client sends it."""
        return is_head(name)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """The local averaged representations: the mean of the features of each class."""
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:  # noqa: ARG002
        """Class means alone."""
        return Upload({}, self.prototypes(trained))

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """The header's update: φ ← φ − η ∇ CE(h(mean; φ), class), over the class means of all participants."""
        means = uploads.prototypes["means"]
        place = means.filled.squeeze(-1).nonzero()  # [P, 2]: client, class
        features = means.vectors[place[:, 0], place[:, 1], 0]
        head = train_head(
            server.previous.weights,
            features,
            place[:, 1],
            lr=self.server_lr,
            epochs=self.server_epochs,
            batch=self.server_batch,
            draws=server.draws("head"),
        )
        return Broadcast(head)
