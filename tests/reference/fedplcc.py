"""A slow, obvious version of FedPLCC's loss: one sample and one cluster at a time."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from tests.reference.clusters import Clusters, contrast, sparsity


def attraction(z: Tensor, y: int, clusters: Clusters, alpha: float, phi: Fraction, weighted: bool) -> Tensor:
    """FedPLCC Eq. 8."""
    members = clusters.get(y, [])
    total = sum(number for _, number in members)
    pulls = [sparsity(z, g, alpha) * (number / total if weighted else 1.0) for g, number in members]
    kept = sorted(pulls, key=lambda pull: pull.item(), reverse=True)[: ceil(phi * len(pulls))]
    return -sum(kept, torch.zeros((), dtype=z.dtype))


def fedplcc(
    z: Tensor,
    y: int,
    ce: Tensor,
    clusters: Clusters,
    lambda1: float,
    lambda2: float,
    tau: float,
    alpha: float,
    phi: Fraction,
    weighted: bool,
) -> Tensor:
    """Eq. 4."""
    pull = attraction(z, y, clusters, alpha, phi, weighted)
    return ce + lambda1 * contrast(z, y, clusters, tau, alpha, weighted) + lambda2 * pull
