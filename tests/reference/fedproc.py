"""A slow, obvious version of FedProc: its loss of one sample, and its server class by class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.clusters import Clusters, contrast


def fedproc(z: Tensor, y: int, ce: Tensor, means: Clusters, alpha_t: float, tau: float) -> Tensor:
    """α_t L_gpc + (1 − α_t) CE."""
    return alpha_t * contrast(z, y, means, tau, 1, False) + (1 - alpha_t) * ce


def mean_over_clients(clients: Sequence[Clusters], weighted: bool) -> Clusters:
    """FedProc's global means, over the holders of a class."""
    found: Clusters = {}
    for c in sorted({c for client in clients for c in client}):
        held = [client[c][0] for client in clients if c in client]
        shares = [number if weighted else 1.0 for _, number in held]
        mean = sum((g * share for (g, _), share in zip(held, shares, strict=True)), torch.zeros(1)) / sum(shares)
        found[c] = [(mean, sum(number for _, number in held))]
    return found
