"""FedBABU's server in plain loops; its rounds are those of `plain_rounds` whose head stays."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

State = dict[str, Tensor]


def next_model(states: Sequence[State], samples: Sequence[float], first: State) -> State:
    """Algorithm 1: bodies by their samples, and the head of the first model."""
    total = 0.0
    for number in samples:
        total += number
    result: State = {}
    for name, begin in first.items():
        if name.split(".")[0] == "head":
            result[name] = begin.clone()
            continue
        result[name] = torch.zeros_like(begin)
        for state, number in zip(states, samples, strict=True):
            result[name] = result[name] + number / total * state[name]
    return result
