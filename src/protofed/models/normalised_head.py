"""A classifier by cosine similarity to fixed prototypes (FedNH)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from protofed.errors import UserError


class NormalisedHead(nn.Module):
    """logits = s · normalise(z) Wᵀ, with W a buffer of orthogonal unit rows and s a parameter."""

    prototypes: Tensor

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        if classes > features:
            why = f"{classes} classes need as many orthogonal prototypes, so at least {classes} features"
            raise UserError("--model", f"{features} features", why)
        self.scale = nn.Parameter(torch.tensor([scale]))
        self.register_buffer("prototypes", nn.init.orthogonal_(torch.empty(classes, features)))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * normalize(features, dim=-1) @ self.prototypes.mT
