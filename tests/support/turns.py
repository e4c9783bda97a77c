"""Turns for tests that call a method's `upload` by themselves."""

from __future__ import annotations

import torch

from protofed.engines.base import nobodys_turn
from protofed.messages import Broadcast
from protofed.methods.base import Method, Trained, Turn
from protofed.methods.local import Local

NOTHING = Local()


def turn_of(trained: Trained, method: Method = NOTHING) -> Turn:
    """The first turn of these clients, which received a head of zeros, and what the method prepares for it."""
    head = torch.zeros(trained.classes, trained.features.shape[-1], dtype=trained.features.dtype)
    return nobodys_turn(method, Broadcast({"head.weight": head}), trained, {})
