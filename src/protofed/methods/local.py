"""Local: every client trains alone.

The papers do not say how long; here it is rounds × epochs, the same compute as in the federated methods. A client
starts from the common initial model and keeps its own for ever, since nothing it receives replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from protofed.methods.base import Batch, Method, Turn, cross_entropy
from protofed.models.net import Net


@dataclass(frozen=True)
class Local(Method):
    """Each client trains alone; the baseline that federation has to beat."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline of every paper"
    up: ClassVar[str] = "nothing"
    down: ClassVar[str] = "nothing"

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """Cross-entropy."""
        return cross_entropy(model(batch.x).logits, batch.y)
