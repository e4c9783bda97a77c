"""CCVR: No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data.

Luo, Chen, Hu, Zhang, Liang and Feng, NeurIPS 2021, arXiv 2106.05001.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Summed, Trained, Turn, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.class_gaussians import Draws, Weights, calibrated_head, moments
from protofed.models.linear_head import WEIGHT


@dataclass(frozen=True)
class CCVR(FedAvg):
    """FedAvg whose server, at the end, retrains the head on features drawn from a Gaussian of each class."""

    name: ClassVar[str] = "ccvr"
    paper: ClassVar[str] = "Luo et al., NeurIPS 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2106.05001"
    up: ClassVar[str] = "weights; counts, sums and sums of products of each class's features"
    prepares: ClassVar[bool] = True
    linear_head: ClassVar[bool] = True

    virtual: int = param(200, "features drawn of each class; 200 in FL-bench", at_least=1)
    gamma: float = param(0.0, "γ added to each variance; the paper has none", at_least=0)
    server_lr: float = param(0.01, "of the head at the server", above=0)
    server_epochs: int = param(10, "passes over the virtual features; 1 in FL-bench", at_least=1)
    server_batch: int = param(50, "virtual features in a step", at_least=1)

    def effort(self, steps: int, client: int, clock: Clock) -> tuple[int, float]:  # noqa: ARG002
        """One step in the last round, whose training is discarded."""
        return (1 if _is_last(clock) else steps), 1.0

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:
        """What the means and covariances of each class are made of, by the received model."""
        return moments(features, labels, len(received.weights[WEIGHT]))

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Also the sums of each class, which are of the received model."""
        sent = super().upload(trained, turn)
        return Upload(sent.weights, sent.prototypes, sent.numbers, turn.prepared)

    def summed(self) -> Summed | None:
        """Means, and sums."""
        return Summed(self.averaging)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """FedAvg; in the last round the received weights, with the head retrained on N(μ_c, Σ_c) of each class.

        The sums give μ_c = Σ_k n_{k,c} μ_{k,c} / n_c and, by the law of total covariance, (n_c − 1) Σ_c =
        Σ_k (n_{k,c} − 1) Σ_{k,c} + Σ_k n_{k,c} μ_{k,c} μ_{k,c}ᵀ − n_c μ_c μ_cᵀ.
        """
        if not _is_last(server.clock):
            return super().aggregate(uploads, server)
        total = {name: value.sum(0) for name, value in uploads.sums.items()}
        head = self.calibrated(server.previous.weights, total, server.draws)
        return Broadcast({**server.previous.weights, **head})

    def calibrated(self, weights: Weights, total: Weights, draws: Draws) -> dict[str, Tensor]:
        """The head of a model, from the sums over all clients' samples."""
        return calibrated_head(
            weights,
            total,
            virtual=self.virtual,
            gamma=self.gamma,
            lr=self.server_lr,
            epochs=self.server_epochs,
            batch=self.server_batch,
            draws=draws("features"),
            order=draws("head"),
        )


def _is_last(clock: Clock) -> bool:
    return clock.round == clock.rounds - 1
