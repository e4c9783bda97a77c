"""FedBN's cut by the layers themselves, and its server in plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]


def of_batch_norm(module: nn.Module, kinds: tuple[type[nn.Module], ...] = ()) -> set[str]:
    """The names of parameters and buffers of BatchNorm layers, torch's and other `kinds`."""
    found = set()
    wanted: tuple[type[nn.Module], ...] = (_BatchNorm, *kinds)
    for layer, part in module.named_modules():
        if isinstance(part, wanted):
            for name in part.state_dict():
                found.add(f"{layer}.{name}")
    return found


def mean_without(states: Sequence[State], staying: set[str]) -> State:
    """Algorithm 1: the plain mean over clients, tensor by tensor, of what does not stay."""
    result: State = {}
    for name, first in states[0].items():
        if name in staying:
            continue
        total = torch.zeros_like(first)
        for state in states:
            total = total + state[name]
        result[name] = total / len(states)
    return result
