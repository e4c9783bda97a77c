"""LG-FedAvg's server in plain loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]


def mean_of_heads(states: Sequence[State], beginnings: Sequence[str]) -> State:
    """Algorithm 1: the plain mean over clients of what begins with one of some words; the rest is not there."""
    result: State = {}
    for name, first in states[0].items():
        common = False
        for word in beginnings:
            if name[: len(word)] == word:
                common = True
        if common:
            total = torch.zeros_like(first)
            for state in states:
                total = total + state[name]
            result[name] = total / len(states)
    return result
