"""Losses that know how many samples of each class a client has, n_c."""

from __future__ import annotations

import torch
from torch import Tensor

ABSENT = 1e4
"""What is taken off the logit of a class that a client lacks. Its probability is then 0 in either precision; −∞ would
make the loss of padding, which may be of such a class, infinite, and its gradient nan."""


def margins(counts: Tensor, tau: float) -> Tensor:
    """τ n_c^(−1/4), FedLC's; with τ = 0 nothing, otherwise `ABSENT` for a class that the client lacks."""
    return torch.where(counts > 0, tau * counts.clamp(min=1) ** -0.25, ABSENT if tau else 0.0)


def log_prior(counts: Tensor, gamma: float) -> Tensor:
    """γ log n_c, of the balanced softmax; with γ = 0 nothing, otherwise −`ABSENT` for a class that the client lacks."""
    return torch.where(counts > 0, gamma * counts.clamp(min=1).log(), -ABSENT if gamma else 0.0)
