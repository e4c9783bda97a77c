"""FedBABU: bodies are trained below one random head, which each client fine-tunes for itself.

Oh, Kim, Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, arXiv 2106.06042.
BatchNorm statistics of the body follow the data in both phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Phase, Server, Summed, Trained, Turn, param
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedBABU(FedAvg):
    """The head is random and fixed while bodies are averaged; a client's own is fine-tuned at the end of its turn."""

    name: ClassVar[str] = "fedbabu"
    paper: ClassVar[str] = "Oh et al., ICLR 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2106.06042"
    up: ClassVar[str] = "weights of the body"
    down: ClassVar[str] = "weights, the common head among them"
    score: ClassVar[str] = "own/own/head"

    tune_epochs: int = param(5, "epochs in which the head is fine-tuned; the paper: 5", at_least=1)

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Algorithm 1: the body with the head fixed; then, for evaluation, the head with the body fixed."""
        return [Phase(epochs, is_body), Phase(self.tune_epochs, is_head)]

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """The body, which the second phase has left as it was."""
        sent = super().upload(trained, turn)
        body = {name: tensor for name, tensor in sent.weights.items() if is_body(name)}
        return Upload(body, sent.prototypes, sent.numbers)

    def summed(self) -> Summed | None:
        """A mean is a sum."""
        return Summed(self.averaging)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """θ^ext = Σ_k (n_k / n) θ^ext_k; with it goes the head of the beginning, with which each turn begins again."""
        head = {name: tensor for name, tensor in server.previous.weights.items() if is_head(name)}
        return Broadcast({**super().aggregate(uploads, server).weights, **head})


def is_head(name: str) -> bool:
    """Whether a parameter or buffer is the head's."""
    return name.startswith("head.")


def is_body(name: str) -> bool:
    """Or the body's."""
    return not is_head(name)
