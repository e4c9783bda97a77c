"""Prototypes: one dense type for class means, k-means centroids, FINCH clusters and pools."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Prototypes(NamedTuple):
    """Up to M prototypes for each of C classes; a slot with count 0 is empty.

    `vectors` is [..., C, M, D] and `counts` [..., C, M], of the same dtype: how many samples each prototype stands for.
    Leading axes are clients. Empty slots hold zeros.
    """

    vectors: Tensor
    counts: Tensor

    @property
    def filled(self) -> Tensor:
        """[..., C, M]: which slots hold a prototype."""
        return self.counts > 0

    @property
    def present(self) -> Tensor:
        """[..., C]: which classes have a prototype."""
        return self.filled.any(-1)

    def take(self, rows: int | slice | Tensor) -> Prototypes:
        """Those of some clients: the leading axis, indexed."""
        return Prototypes(self.vectors[rows], self.counts[rows])

    def class_mean(self) -> Tensor:
        """[..., C, D]: the unweighted mean of each class's prototypes; zeros for a class without any."""
        if self.counts.shape[-1] == 1:
            return self.vectors.squeeze(-2)
        number = self.filled.sum(-1, keepdim=True).clamp(min=1)
        return self.vectors.sum(-2) / number

    def pooled(self) -> Prototypes:
        """All clients' prototypes of a class side by side: [N, C, M, D] becomes [C, N*M, D]."""
        vectors, counts = self.vectors.movedim(-4, -3), self.counts.movedim(-3, -2)
        return Prototypes(vectors.flatten(-3, -2), counts.flatten(-2, -1)).compact()

    def compact(self) -> Prototypes:
        """Filled slots first, in their old order; no more slots than the fullest class needs (at least one)."""
        order = (~self.filled).to(torch.uint8).argsort(dim=-1, stable=True)
        width = max(1, int(self.filled.sum(-1).max())) if self.counts.numel() else 1
        order = order[..., :width]
        counts = self.counts.gather(-1, order)
        vectors = self.vectors.gather(-2, order.unsqueeze(-1).expand(*order.shape, self.vectors.shape[-1]))
        return Prototypes(vectors * (counts > 0).unsqueeze(-1), counts)

    def widen(self, slots: int) -> Prototypes:
        """The same prototypes with `slots` slots a class, the new ones empty."""
        extra = slots - self.counts.shape[-1]
        if extra < 0:
            raise ValueError(f"{self.counts.shape[-1]} slots a class do not fit into {slots}")
        return Prototypes(pad(self.vectors, (0, 0, 0, extra)), pad(self.counts, (0, extra)))
