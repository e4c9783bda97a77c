"""Engines: same interface, same results, different speed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protofed.engines.base import Engine
from protofed.engines.group import Group
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked

__all__ = ["ENGINES", "Engine", "choose_engine"]

ENGINES: dict[str, type[Engine]] = {"sequential": Sequential, "stacked": Stacked}

SMALL = 200_000
"""Up to so many numbers a CPU spends a step on overhead, not arithmetic, and stacking pays (benchmarks/engines.py)."""


def choose_engine(name: str, device: torch.device, groups: Sequence[Group]) -> tuple[type[Engine], str]:
    """The engine of a run, and why."""
    if name != "auto":
        return ENGINES[name], "as asked"
    if device.type == "cuda":
        return Stacked, "on a GPU all clients train in one batched step"
    if max(len(group.members) for group in groups) == 1:
        return Sequential, "no two clients share an architecture"
    largest = max(sum(value.numel() for value in group.own.initial.values()) for group in groups)
    if largest <= SMALL:
        return Stacked, f"a small model ({largest:,} numbers) on a CPU"
    return Sequential, f"a large model ({largest:,} numbers) on a CPU"
