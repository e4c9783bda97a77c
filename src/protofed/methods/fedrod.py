"""FedRoD: a generic head that forgets a client's class counts, and a private one that learns what it left out.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022,
arXiv 2107.00778. The private head is the paper's linear one; its hypernetwork is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.class_counts import log_prior
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.models.private_head import PRIVATE, with_private_head


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """FedAvg with a balanced softmax; beside its head a private one, and a client's own answers add both."""

    name: ClassVar[str] = "fedrod"
    paper: ClassVar[str] = "Chen and Chao, ICLR 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2107.00778"
    up: ClassVar[str] = "weights without the private head"
    down: ClassVar[str] = "weights without the private head"
    score: ClassVar[str] = "own/own/both-heads"
    rule: ClassVar[str] = "both-heads"

    gamma: float = param(1.0, "γ in n_c^γ: 1 is the balanced softmax, 0 FedAvg with a private head", at_least=0)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """With a copy of the head for the client alone."""
        return with_private_head(module)

    def shares(self, name: str) -> bool:
        """The generic model: body and head."""
        return not name.startswith(f"{PRIVATE}.")

    def does_without(self, name: str) -> bool:
        """The averaged model answers by its own head."""
        return not self.shares(name)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """−log n_y^γ e^{g_y} / Σ_c n_c^γ e^{g_c} of the generic logits g, and CE of g + p, in which only p learns."""
        out = model(batch.x)
        prior = log_prior(turn.counts.to(out.logits.dtype), self.gamma)
        both = out.logits.detach() + out.more[PRIVATE]
        return cross_entropy(out.logits + prior, batch.y) + cross_entropy(both, batch.y)

    def answer(self, output: Output, turn: Turn) -> Tensor:  # noqa: ARG002
        """The personalised predictor, g + p."""
        return output.logits + output.more[PRIVATE]
