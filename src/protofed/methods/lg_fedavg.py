"""LG-FedAvg: local representations below a common head.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, arXiv 2001.01523.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from protofed.errors import UserError
from protofed.methods.base import AVERAGING, Averaging, param
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class LGFedAvg(FedAvg):
    """FedAvg of the last layers alone; the body stays at the client."""

    name: ClassVar[str] = "lg-fedavg"
    paper: ClassVar[str] = "Liang et al., arXiv 2020"
    link: ClassVar[str] = "https://arxiv.org/abs/2001.01523"
    up: ClassVar[str] = "weights of the head"
    down: ClassVar[str] = "weights of the head"
    score: ClassVar[str] = "own/own/head"

    averaging: Averaging = param("uniform", AVERAGING)  # official code
    common: str = param("head", "how names of averaged layers begin; official code: the last 3 layers of its MLP")

    def shares(self, name: str) -> bool:
        """Algorithm 1: θ^g, the global model; θ^l stays."""
        return name.startswith(tuple(part.strip() for part in self.common.split(",") if part.strip()))

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """The model as it is, if some of it is averaged."""
        names = [name for name, _ in module.named_parameters()]
        if not any(map(self.shares, names)):
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise UserError("--set common", self.common, f"it must name some of the model's parts: {parts}")
        return module
