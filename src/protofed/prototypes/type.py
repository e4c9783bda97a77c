"""Prototypes: one dense type for class means, k-means centroids, FINCH clusters and pools."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad


class Prototypes(NamedTuple):
    """Hold up to M prototypes for each of C classes; a slot with count 0 is empty.

    Class means, k-means centroids, FINCH clusters and pools over clients are of this type.

    Args:
        vectors: [..., C, M, D]; leading axes are clients. Empty slots hold zeros.
        counts: [..., C, M], of the same dtype: how many samples each prototype stands for.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes
        >>> found = Prototypes(torch.tensor([[[1.0], [3.0]], [[5.0], [0.0]]]), torch.tensor([[2.0, 2.0], [4.0, 0.0]]))
        >>> found.filled.tolist()
        [[True, True], [True, False]]
        >>> found.class_mean().tolist()
        [[2.0], [5.0]]
    """

    vectors: Tensor
    counts: Tensor

    @property
    def filled(self) -> Tensor:
        """Which slots hold a prototype [..., C, M], bool."""
        return self.counts > 0

    @property
    def present(self) -> Tensor:
        """Which classes have a prototype [..., C], bool."""
        return self.filled.any(-1)

    def take(self, rows: int | slice | Tensor) -> Prototypes:
        """Take the prototypes of some clients: index the leading axis."""
        return Prototypes(self.vectors[rows], self.counts[rows])

    def class_mean(self) -> Tensor:
        """Average each class's prototypes without weights [..., C, D]; zeros for a class without any."""
        if self.counts.shape[-1] == 1:
            return self.vectors.squeeze(-2)
        number = self.filled.sum(-1, keepdim=True).clamp(min=1)
        return self.vectors.sum(-2) / number

    def pooled(self) -> Prototypes:
        """Put all clients' prototypes of a class side by side: [N, C, M, D] becomes [C, M', D], compact."""
        vectors, counts = self.vectors.movedim(-4, -3), self.counts.movedim(-3, -2)
        return Prototypes(vectors.flatten(-3, -2), counts.flatten(-2, -1)).compact()

    def compact(self) -> Prototypes:
        """Move filled slots first, in their old order; keep as many slots as the fullest class needs, at least one."""
        order = (~self.filled).to(torch.uint8).argsort(dim=-1, stable=True)
        width = max(1, int(self.filled.sum(-1).max())) if self.counts.numel() else 1
        order = order[..., :width]
        counts = self.counts.gather(-1, order)
        vectors = self.vectors.gather(-2, order.unsqueeze(-1).expand(*order.shape, self.vectors.shape[-1]))
        return Prototypes(vectors * (counts > 0).unsqueeze(-1), counts)

    def widen(self, slots: int) -> Prototypes:
        """Add empty slots, so that there are `slots` per class."""
        extra = slots - self.counts.shape[-1]
        if extra < 0:
            raise ValueError(f"{self.counts.shape[-1]} slots per class do not fit into {slots}")
        return Prototypes(pad(self.vectors, (0, 0, 0, extra)), pad(self.counts, (0, extra)))
