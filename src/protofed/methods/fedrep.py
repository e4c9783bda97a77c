"""FedRep: FedPer whose clients train the head first, then the base.  Collins et al., ICML 2021, arXiv 2102.07078.

Freezing holds parameters still; BatchNorm statistics of the frozen base follow the data in both phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from protofed.errors import UserError
from protofed.methods.base import Phase
from protofed.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """A shared base and a personal head, trained one after the other."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al., ICML 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2102.07078"

    averaging: Literal["samples", "uniform"] = "uniform"  # Algorithm 1
    head_epochs: int = 1  # the paper's runs: about 10, then 1 to 5 epochs of the base

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_epochs < 1:
            raise UserError("head_epochs", self.head_epochs, "it must be 1 or more")

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Algorithm 1: the head with the base frozen, then the base with the head frozen."""
        return [Phase(self.head_epochs, self.stays), Phase(epochs, self.shares)]
