"""A temperature that every client learns for itself; the averaged model answers without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from protofed.methods.fedavg import FedAvg
from protofed.models import Output

OWN = "log_temperature"


class Tempered(nn.Module):
    """A model whose logits are divided by a temperature."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.feature_size = cast(int, body.feature_size)
        self.body = body
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Output:
        out = cast(Output, self.body(x))
        return out._replace(logits=out.logits * (-self.log_temperature).exp())


@dataclass(frozen=True)
class PrivateTemperature(FedAvg):
    """FedAvg of all but the temperature, which changes no prediction."""

    name: ClassVar[str] = "private-temperature"

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """With the temperature."""
        return Tempered(module)

    def shares(self, name: str) -> bool:
        """All but the temperature."""
        return name != OWN

    def does_without(self, name: str) -> bool:
        """A temperature orders the classes as none does."""
        return name == OWN
