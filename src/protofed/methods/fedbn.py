"""FedBN: FedAvg whose BatchNorm layers stay at the client.

Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, arXiv 2102.07623.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from protofed.methods.base import AVERAGING, Averaging, param
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """All but BatchNorm's parameters and statistics is averaged."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "Li et al., ICLR 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2102.07623"
    up: ClassVar[str] = "weights without BatchNorm"
    down: ClassVar[str] = "weights without BatchNorm"
    score: ClassVar[str] = "own/own/head"

    averaging: Averaging = param("uniform", AVERAGING)  # Algorithm 1
    norm: Literal["mean", "total"] = field(default="mean", init=False)  # of no layer that is averaged

    def shared(self, names: Collection[str]) -> set[str]:
        """Algorithm 1: every layer that is no BatchNorm, which is known by its running mean and not by its name."""
        norms = {layer(name) for name in names if name.endswith(".running_mean")}
        return {name for name in names if layer(name) not in norms}


def layer(name: str) -> str:
    """The layer that a parameter or buffer belongs to."""
    return name.rpartition(".")[0]
