"""A classifier whose class vectors are fixed at the largest equal angles (FedETF)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize


class EtfHead(nn.Module):
    """logits = s · normalise(P z) V: a projection P to as many numbers as classes, a parameter s, a fixed frame V."""

    frame: Tensor

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([scale]))
        self.projection = nn.Linear(features, classes)
        self.register_buffer("frame", simplex_frame(classes), persistent=False)  # known to all: neither kept nor sent

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * normalize(self.projection(features), dim=-1) @ self.frame


def simplex_frame(classes: int) -> Tensor:
    """√(C/(C−1)) (I − 11ᵀ/C): C unit vectors of C numbers, every two of which have the cosine −1/(C−1)."""
    return math.sqrt(classes / (classes - 1)) * (torch.eye(classes) - 1 / classes)
