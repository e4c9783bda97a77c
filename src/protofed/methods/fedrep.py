"""FedRep: FedPer whose clients train the head first, then the base.  Collins et al., ICML 2021, arXiv 2102.07078.

Freezing holds parameters still; BatchNorm statistics of the frozen base follow the data in both phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from protofed.methods.base import AVERAGING, Averaging, Phase, param
from protofed.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """A shared base and a personal head, trained one after the other."""

    name: ClassVar[str] = "fedrep"
    paper: ClassVar[str] = "Collins et al., ICML 2021"
    link: ClassVar[str] = "https://arxiv.org/abs/2102.07078"

    averaging: Averaging = param("uniform", AVERAGING)  # Algorithm 1
    head_epochs: int = param(1, "the paper's runs: about 10, then 1 to 5 epochs of the base", at_least=1)

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Algorithm 1: the head with the base frozen, then the base with the head frozen."""
        return [Phase(self.head_epochs, self.stays), Phase(epochs, self.shares)]
