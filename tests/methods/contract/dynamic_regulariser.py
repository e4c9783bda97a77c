"""Like FedDyn (Acar et al., ICLR 2021): every client keeps a vector that corrects its objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Server, Summed, Trained, Turn, param, weighted_mean
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class DynamicRegulariser(FedAvg):
    """The client's state is g_k ← g_k − α (w_k − w), the server's h ← h − α/m Σ_k (w_k − w)."""

    name: ClassVar[str] = "dynamic-regulariser"

    alpha: float = param(0.1, "α", above=0)

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """g_k = 0."""
        return {name: value.new_zeros(value.shape) for name, value in weights.items() if value.is_floating_point()}

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE − ⟨g_k, w_k⟩ + α/2 |w_k − w|²."""
        term = batch.x.new_zeros(())
        for name, weight in model.weights.items():
            term = term - (turn.memory[name] * weight).sum()
            term = term + self.alpha / 2 * (weight - turn.received.weights[name]).square().sum()
        return super().loss(model, batch, turn) + term

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        """g_k ← g_k − α (w_k − w)."""
        received = turn.received.weights
        return {n: old - self.alpha * (trained.weights[n] - received[n]) for n, old in turn.memory.items()}

    def summed(self) -> Summed | None:
        """The server counts its clients."""
        return None

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """The mean of w_k, less h/α; BatchNorm's statistics are averaged, for a variance stays above 0."""
        mean = weighted_mean(uploads.weights, uploads.numbers["samples"].new_ones(len(server.clock.who)))
        part = len(server.clock.who) / server.clock.clients
        kept, weights = {}, dict(mean)
        for name in (name for name, value in mean.items() if value.is_floating_point() and "running_" not in name):
            old = server.previous.kept.get(name, mean[name].new_zeros(()))
            kept[name] = old - self.alpha * part * (mean[name] - server.previous.weights[name])
            weights[name] = mean[name] - kept[name] / self.alpha
        return Broadcast(weights, kept=kept)
