"""A slow, obvious version of FedPLVM's loss: one sample at a time."""

from __future__ import annotations

from torch import Tensor

from tests.reference.clusters import Clusters, contrast, cosine, mean_of


def fedplvm(z: Tensor, y: int, ce: Tensor, clusters: Clusters, lam: float, tau: float, alpha: float) -> Tensor:
    """CE + λ (L_contra + 2 (1 − cos(z, ḡ))²)."""
    added = contrast(z, y, clusters, tau, alpha, False)
    if y in clusters:
        added = added + 2 * (1 - cosine(z, mean_of(clusters[y]))) ** 2
    return ce + lam * added
