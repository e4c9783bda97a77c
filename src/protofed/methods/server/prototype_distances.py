"""How near clients are to each other by their class means."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.prototypes import Prototypes, mean_over_holders

ROUNDING = 100
"""Times the precision: distances that are smaller, measured by the length of the means, are none."""


def closeness(means: Prototypes) -> Tensor:
    """exp(−d_k / d̄) of each client [N], in float64, by its class means [N, C, 1, D]; 1 where none lies apart.

    d_k is the mean distance of a client's class means to everybody's, μ_c = Σ_k n_kc μ_kc / Σ_k n_kc, weighed by its
    samples n_kc of the classes, and d̄ the mean of d_k. A client that sends no mean counts as if it lay at d̄.
    """
    exact = Prototypes(means.vectors.double(), means.counts.double().clamp(min=0))  # private counts may be below 0
    number = exact.counts.sum((-2, -1))
    share = exact.counts.squeeze(-1) / torch.where(number > 0, number, 1).unsqueeze(-1)
    common = mean_over_holders(exact, "samples").class_mean()
    d = (share * (exact.class_mean() - common).norm(dim=-1)).sum(-1)
    length = (share * exact.class_mean().norm(dim=-1)).sum(-1)
    senders = (number > 0).sum().clamp(min=1)
    middle = d.sum() / senders
    apart = middle > ROUNDING * torch.finfo(means.vectors.dtype).eps * length.sum() / senders
    d = torch.where(number > 0, d, middle)
    return torch.where(apart, torch.exp(-d / torch.where(apart, middle, 1)), 1.0)
