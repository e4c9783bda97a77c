"""Linear systems of Gram and covariance matrices, in float64 and safe where they have no inverse."""

from __future__ import annotations

import torch
from torch import Tensor


def ridge(gram: Tensor, targets: Tensor, lam: float = 0.0) -> Tensor:
    """(G + λI)⁻¹ B for a symmetric G [D, D] without negative eigenvalues, and B [D, C].

    Rounding or noise may make an eigenvalue negative: it counts as 0. Where one is 0 still with λ, it is a
    pseudo-inverse.
    """
    values, vectors = torch.linalg.eigh((gram + gram.mT).double() / 2)
    values = values.clamp(min=0) + lam
    least = len(values) * torch.finfo(values.dtype).eps * values.max()
    inverse = torch.where(values > least, 1 / values, 0)
    answer: Tensor = vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ targets.double()))
    return answer


def lengths(rows: Tensor) -> Tensor:
    """Of rows [..., D], [..., 1], to divide them by, however short they are; 1 for zeros."""
    found: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return torch.where(found > 0, found, 1)
