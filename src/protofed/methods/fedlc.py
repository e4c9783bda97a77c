"""FedLC: a margin on logits, the larger the rarer a class is at the client.

Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022, arXiv 2209.00189.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.class_counts import margins
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class FedLC(FedAvg):
    """FedAvg whose clients take a margin off each logit by how often they have the class."""

    name: ClassVar[str] = "fedlc"
    paper: ClassVar[str] = "Zhang et al., ICML 2022"
    link: ClassVar[str] = "https://arxiv.org/abs/2209.00189"

    tau: float = param(1.0, "τ, the weight of the margin; 1 in public codes; 0 is FedAvg", at_least=0)
    denominator: Literal["all", "others"] = param(
        "all", "classes summed over: all, as in public codes; others: all but the sample's own, as printed"
    )

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """−log e^{z_y − τ n_y^(−1/4)} / Σ_c e^{z_c − τ n_c^(−1/4)}; the paper prints the sum over c ≠ y."""
        logits = model(batch.x).logits
        logits = logits - margins(turn.counts.to(logits.dtype), self.tau)
        if self.denominator == "all":
            return cross_entropy(logits, batch.y)
        y = batch.y.unsqueeze(-1)
        own = torch.arange(logits.shape[-1], device=y.device) == y
        return logits.masked_fill(own, -torch.inf).logsumexp(-1) - logits.gather(-1, y).squeeze(-1)
