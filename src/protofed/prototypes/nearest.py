"""The nearest-prototype rule."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.prototypes.type import Prototypes


def nearest_class(features: Tensor, prototypes: Prototypes, allowed: Tensor | None = None) -> Tensor:
    """argmin_c min_k |z − u_{c,k}| (FedProto Eq. 4, MP-FedCL Eq. 13) for features [..., B, D]: [..., B].

    `prototypes` is [C, M, D], shared, or [..., C, M, D]; `allowed`, [..., C], restricts the choice to some classes.
    −1 where there is none to choose.
    """
    usable = prototypes.filled if allowed is None else prototypes.filled & allowed.unsqueeze(-1)
    # argmin |z − u|² = argmin |u|² − 2 z·u. Seen from the prototypes' middle: a common offset would cost digits.
    number = prototypes.filled.sum((-2, -1)).clamp(min=1).view(*prototypes.counts.shape[:-2], 1, 1)
    vectors = prototypes.vectors.flatten(-3, -2)
    middle = vectors.sum(-2, keepdim=True) / number
    vectors = vectors - middle
    score = vectors.square().sum(-1).unsqueeze(-2) - 2 * (features - middle) @ vectors.mT
    score = score.masked_fill(~usable.flatten(-2).unsqueeze(-2), torch.inf)
    best = torch.unflatten(score, -1, prototypes.counts.shape[-2:]).amin(-1).argmin(-1)
    return torch.where(usable.any(-1).any(-1, keepdim=True), best, -1)
