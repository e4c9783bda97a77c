"""FedNCM: Guiding The Last Layer in Federated Learning with Pre-Trained Models.

Legate, Bernier, Page-Caccia, Oyallon and Belilovsky, NeurIPS 2023, arXiv 2306.03937.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.methods.one_shot import OneShot
from protofed.methods.server.closed_form import lengths


@dataclass(frozen=True)
class FedNCM(OneShot):
    """The head is the normalised mean of each class over all clients; nobody trains."""

    name: ClassVar[str] = "fedncm"
    paper: ClassVar[str] = "Legate et al., NeurIPS 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2306.03937"
    up: ClassVar[str] = "class sums and counts"

    def statistics(self, features: Tensor, member: Tensor) -> Mapping[str, Tensor]:
        """Σ z and n of each class."""
        return {"features": member.mT @ features, "counts": member.sum(-2)}

    def head(self, total: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """W_c = μ_c / |μ_c|, which is Σ z / |Σ z|; zeros for a class that nobody holds."""
        return total["features"] / lengths(total["features"]), None
