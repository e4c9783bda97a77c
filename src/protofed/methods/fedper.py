"""FedPer: a shared base and a personal head.  Arivazhagan et al., arXiv 1912.00818."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from protofed.errors import UserError
from protofed.methods.base import param
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of all but the last layers, which stay at the client."""

    name: ClassVar[str] = "fedper"
    paper: ClassVar[str] = "Arivazhagan et al., arXiv 2019"
    link: ClassVar[str] = "https://arxiv.org/abs/1912.00818"
    up: ClassVar[str] = "weights of the base"
    down: ClassVar[str] = "weights of the base"
    score: ClassVar[str] = "own/own/head"

    personal: str = param(
        "hidden,head",
        "how names of personal layers begin; FedProto: both dense layers of its CNN, the last one of a ResNet",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beginnings():
            raise UserError("--set personal", self.personal, "it must name layers, as in hidden,head")

    def beginnings(self) -> tuple[str, ...]:
        """How the names of personal parameters begin."""
        return tuple(part.strip() for part in self.personal.split(",") if part.strip())

    def stays(self, name: str) -> bool:
        """Whether a parameter or buffer is personal."""
        return name.startswith(self.beginnings())

    def shares(self, name: str) -> bool:
        """The base."""
        return not self.stays(name)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """The model as it is, if it has both a base and a personal part."""
        staying = {self.stays(name) for name, _ in module.named_parameters()}
        if len(staying) < 2:
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name, _ in module.named_parameters()))
            raise UserError(
                "--set personal", self.personal, f"it must name some but not all of the model's parts: {parts}"
            )
        return module
