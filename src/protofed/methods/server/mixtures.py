"""Mixtures of clients' heads (FedPAC): for each client the convex combination that suits its features best."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from protofed.prototypes import class_means

SMALLEST = 1e-3
"""A part that is smaller is dropped, as in the public code."""
FLOOR = 1e-9
"""Of the mean variance and bias, added to each variance: of two clients alike in all, each gets one half."""


def head_statistics(features: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """h_c = p_c μ_c [N, C, D] and v = (E|z|² − Σ_c |h_c|²) / n [N] of clients' features [N, n, D]; label −1 pads."""
    means = class_means(features, labels, classes)
    number = means.counts.sum((-2, -1))
    h = means.class_mean() * means.counts / number.view(-1, 1, 1)
    squares = ((labels >= 0) * features.square().sum(-1)).sum(-1) / number
    return {"h": h, "v": (squares - h.square().sum((-2, -1))).clamp(min=0) / number}


def mixtures(references: Tensor, variances: Tensor) -> Tensor:
    """[N, N]: row i holds the α ≥ 0, Σ α = 1, with the least Σ_j v_j α_j² + |Σ_j α_j h_j − h_i|².

    `references` [N, F] are h, `variances` [N] are v. The minimum of αᵀPα on the simplex is, up to its length, that of
    αᵀPα + (Σα − 1)² over α ≥ 0: a non-negative least-squares problem.
    """
    h, v = references.double().cpu(), variances.double().cpu().clamp(min=0)
    products = h @ h.T
    own = products.diagonal()
    scale = float((own + v).mean()) or 1.0
    rows = []
    for mine in range(len(h)):
        to_mine = products[mine]
        problem = (products - to_mine - to_mine.unsqueeze(-1) + own[mine] + torch.diag(v)) / scale
        factor = np.linalg.cholesky((problem + 1 + FLOOR * torch.eye(len(h))).numpy())
        found, _ = nnls(factor.T, np.linalg.solve(factor, np.ones(len(h))), maxiter=100 * len(h))
        part = torch.from_numpy(found / found.sum())
        part = torch.where(part > SMALLEST, part, 0)
        rows.append(part / part.sum())
    return torch.stack(rows).to(references)
