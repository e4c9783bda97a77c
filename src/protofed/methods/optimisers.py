"""PyTorch's optimisers without torch.compile, which they import at their first step: a second of every process."""

from __future__ import annotations

from inspect import unwrap
from typing import TypeVar

import torch
from torch import Tensor

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def uncompiled(kind: type[Kind]) -> type[Kind]:
    """The same optimiser: what is wrapped around these three only speaks to torch.compile, or stops gradients."""
    parts = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    return type(kind.__name__, (kind,), {**parts, "step": torch.no_grad()(unwrap(kind.step))})


SGD = uncompiled(torch.optim.SGD)
Adam = uncompiled(torch.optim.Adam)
AdamW = uncompiled(torch.optim.AdamW)

OPTIMISERS: dict[str, type[torch.optim.Adam]] = {"adam": Adam, "adamw": AdamW}
"""What --optimiser may name in place of the method's own, which is SGD but for a few."""


def gradient_weight(steps: Tensor, momentum: float) -> Tensor:
    """Return ‖a‖₁ of so many steps of SGD: each moves by lr · Σ_j ρ^(t−j) g_j, so gradient j counts Σ_{t≥j} ρ^(t−j).

    Args:
        steps: τ, of any shape.
        momentum: ρ.

    Returns:
        Σ_{j=1..τ} (1 + ρ + … + ρ^(j−1)) in float64: τ without momentum.
    """
    steps = steps.to(torch.float64)
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
