"""FedRCL: a supervised contrast within the batch, at every level, that lets classes spread.

Seo et al., CVPR 2024, arXiv 2401.04928. Samples of a class attract each other and repel other classes; those of one
class that are already too close repel each other too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from protofed.errors import UserError
from protofed.methods.base import AVERAGING, Averaging, Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class FedRCL(FedAvg):
    """FedAvg plus a relaxed supervised contrast between the samples of a batch, on every block of the model."""

    name: ClassVar[str] = "fedrcl"
    paper: ClassVar[str] = "Seo et al., CVPR 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2401.04928"
    clip: ClassVar[float | None] = 10.0  # public code

    averaging: Averaging = param("uniform", AVERAGING)  # public code
    pairs: Literal["hardest", "all"] = param("hardest", "public code; all: the paper's sums")
    negatives: int = param(2, "hardest: so many of the most similar samples of other classes", at_least=1)
    temperature: float = param(0.05, "τ of contrast and penalty", above=0)
    threshold: float = param(
        0.7, "λ: pairs of a class whose cosine is at least this repel each other", at_least=-1, at_most=1
    )
    contrast_weight: float = param(1.0, "weight of the contrast", at_least=0)
    penalty_weight: float = param(1.0, "β: weight of the penalty", at_least=0)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """CE + the mean over levels of contrast and penalty."""
        out = model(batch.x)
        if not out.blocks:
            kind = type(model.module).__name__
            raise UserError("--model", kind, f"{self.name} compares block features, and this model returns none")
        same = batch.y.unsqueeze(0) == batch.y.unsqueeze(1)
        itself = torch.eye(len(batch.y), dtype=torch.bool, device=batch.y.device)
        kin, others = same & batch.mask & ~itself, ~same & batch.mask
        levels = torch.stack([self.level(block.to(out.logits.dtype), kin, others) for block in out.blocks])
        return cross_entropy(out.logits, batch.y) + levels.mean(0)

    def level(self, block: Tensor, kin: Tensor, others: Tensor) -> Tensor:
        """Contrast −log e^{s⁺/τ} / (e^{s⁺/τ} + Σ e^{s⁻/τ}); penalty −log e^{1/τ} / (e^{1/τ} + Σ e^{s⁺/τ}), s⁺ ≥ λ."""
        z = normalize(block.reshape(*block.shape[:2], -1).mean(-1), dim=-1, eps=1e-8)  # maps by their mean pixel
        cosines = z @ z.T
        nothing = torch.finfo(z.dtype).min  # not −∞: ∞ − ∞ is NaN
        positive, counted, close = cosines, kin, kin & (cosines >= self.threshold)
        negative = (cosines / self.temperature).where(others, nothing)
        if self.pairs == "hardest":
            positive = cosines.where(kin, 1).amin(-1, keepdim=True)  # the least similar; alone in its class, itself
            close = kin.any(-1, keepdim=True) & (positive >= self.threshold)
            counted = torch.ones_like(close)
            negative = negative.topk(min(self.negatives, len(z)), -1).values
        positive = positive / self.temperature
        contrast = torch.logaddexp(positive, negative.logsumexp(-1, keepdim=True)) - positive
        contrast = (contrast * counted).sum(-1) / counted.sum(-1).clamp(min=1)
        penalty = softplus(positive.where(close, nothing).logsumexp(-1) - 1 / self.temperature)
        return self.contrast_weight * contrast + self.penalty_weight * penalty
