"""FedAvg: the server averages the clients' weights.  McMahan et al., AISTATS 2017, arXiv 1602.05629."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import (
    AVERAGING,
    Averaging,
    Server,
    Summed,
    Trained,
    Turn,
    param,
    total_variances,
    weighted_mean,
)
from protofed.methods.local import Local
from protofed.methods.server.prototype_distances import closeness
from protofed.prototypes import class_means

MEANS = "averaging"
"""What the class means are called by which clients are weighed; no method has a set of this name."""


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
    _: KW_ONLY  # what descendants had before it keeps its place
    norm: Literal["mean", "total"] = param(
        "mean", "how BatchNorm's variances are averaged; total: with the variance of the clients' means added"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.averaging == "prototypes" and self.collect is None:
            object.__setattr__(self, "collect", "eval-pass")  # the class is frozen

    def shares(self, name: str) -> bool:  # noqa: ARG002
        """Everything."""
        return True

    def summed(self) -> Summed | None:
        """A mean is a sum."""
        return Summed(self.averaging)

    def needs_each(self) -> bool:
        """The variance of the clients' means is no sum of what they send, nor is an average by their distances."""
        return self.norm == "total" or self.averaging == "prototypes"

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Weights and, where clients are weighed by them, class means."""
        sent = super().upload(trained, turn)
        if self.averaging != "prototypes":
            return sent
        means = class_means(trained.features, trained.labels, trained.classes)
        return Upload(sent.weights, {**sent.prototypes, MEANS: means}, sent.numbers, sent.sums)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:  # noqa: ARG002
        """W = Σ_k (n_k / n) w_k, or the plain mean of several public codes."""
        if not uploads.weights:
            return Broadcast()
        return Broadcast(self.averaged(uploads.weights, self.importance(uploads)))

    def averaged(self, weights: Mapping[str, Tensor], importance: Tensor) -> dict[str, Tensor]:
        """The mean of models [N, ...], of which each counts as much as its importance [N] says."""
        mean = weighted_mean(weights, importance)
        return mean | total_variances(weights, importance, mean) if self.norm == "total" else mean

    def importance(self, uploads: Upload) -> Tensor:
        """How much each client counts in an average [N]; only their ratios matter."""
        samples = uploads.numbers["samples"]
        if self.averaging == "prototypes":
            return samples * closeness(uploads.prototypes[MEANS])
        return samples if self.averaging == "samples" else torch.ones_like(samples)
