"""A model's linear head by the names of its tensors, for servers that make one or train one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

WEIGHT, BIAS = "head.weight", "head.bias"


def is_head(name: str) -> bool:
    """Whether a parameter or buffer is the head's."""
    return name.startswith("head.")


def is_linear(module: nn.Module) -> bool:
    """Whether a model's head is W z + b with a W and b of its own, so that a server may put others in their place."""
    head = getattr(module, "head", None)
    named = module.named_parameters(remove_duplicate=False)
    elsewhere = {id(parameter) for name, parameter in named if not is_head(name)}
    return type(head) is nn.Linear and not elsewhere & {id(parameter) for parameter in head.parameters()}


def as_head(weight: Tensor, old: Mapping[str, Tensor], bias: Tensor | None = None) -> dict[str, Tensor]:
    """The head with these rows, and a bias of 0 unless one is given, in the types that the old one has."""
    made = {WEIGHT: weight.to(old[WEIGHT]).contiguous()}  # a transposed one cannot be saved
    if BIAS in old:
        made[BIAS] = torch.zeros_like(old[BIAS]) if bias is None else bias.to(old[BIAS])
    return made
