"""PyTorch's optimisers without torch.compile, which they import at their first step: a second of every process."""

from __future__ import annotations

from inspect import unwrap
from typing import TypeVar

import torch

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
