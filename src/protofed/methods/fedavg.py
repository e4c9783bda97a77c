"""FedAvg: the server averages the clients' weights.  McMahan et al., AISTATS 2017, arXiv 1602.05629."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import AVERAGING, Averaging, Clock, Summed, param, weighted_mean
from protofed.methods.local import Local


@dataclass(frozen=True)
class FedAvg(Local):
    """Weights are averaged, BatchNorm statistics included."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    link: ClassVar[str] = "https://arxiv.org/abs/1602.05629"
    up: ClassVar[str] = "weights"
    down: ClassVar[str] = "weights"
    score: ClassVar[str] = "global/all/head"

    averaging: Averaging = param("samples", AVERAGING)

    def shares(self, name: str) -> bool:  # noqa: ARG002
        """Everything."""
        return True

    def summed(self) -> Summed | None:
        """A mean is a sum."""
        return Summed(self.averaging)

    def aggregate(self, uploads: Upload, previous: Broadcast, clock: Clock) -> Broadcast:  # noqa: ARG002
        """W = Σ_k (n_k / n) w_k, or the plain mean of several public codes."""
        if not uploads.weights:
            return Broadcast()
        samples = uploads.numbers["samples"]
        return Broadcast(
            weighted_mean(uploads.weights, samples if self.averaging == "samples" else torch.ones_like(samples))
        )
