"""FedETF: all clients learn towards one fixed simplex of class vectors.

Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
Classifier, ICCV 2023, arXiv 2303.10058. Its fine-tuning of frame and projection for single clients is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.class_counts import log_prior
from protofed.methods.fedavg import FedAvg
from protofed.models.etf_head import EtfHead
from protofed.models.net import Net


@dataclass(frozen=True)
class FedETF(FedAvg):
    """FedAvg with a fixed simplex equiangular tight frame as classifier and a balanced softmax."""

    name: ClassVar[str] = "fedetf"
    paper: ClassVar[str] = "Li et al., ICCV 2023"
    link: ClassVar[str] = "https://arxiv.org/abs/2303.10058"

    scale: float = param(1.0, "β at the start, which is learnt; 1 in the official LeNet5", above=0)
    gamma: float = param(1.0, "γ in n_c^γ: 1 is the balanced softmax of the official code, 0 plain", at_least=0)

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        """In place of the linear classifier: β · normalise(P z)ᵀ V, with V = √(C/(C−1)) U (I − 11ᵀ/C) and U = I."""
        module.head = EtfHead(cast(int, module.feature_size), classes, self.scale)
        return module

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """The balanced feature loss: −log n_y^γ e^{β v_yᵀμ} / Σ_c n_c^γ e^{β v_cᵀμ}, with μ = normalise(P z)."""
        logits = model(batch.x).logits
        return cross_entropy(logits + log_prior(turn.counts.to(logits.dtype), self.gamma), batch.y)
