"""A slow, obvious version of FPL's loss: one sample at a time."""

from __future__ import annotations

from torch import Tensor

from tests.reference.clusters import Clusters, contrast, mean_of


def fpl(z: Tensor, y: int, ce: Tensor, clusters: Clusters, tau: float, total: bool = False) -> Tensor:
    """CE + L_CPCL + L_UPCR."""
    loss = ce + contrast(z, y, clusters, tau, 1, False)
    if y in clusters:
        difference = z - mean_of(clusters[y])
        loss = loss + (difference**2).sum() / (1 if total else len(z))
    return loss
