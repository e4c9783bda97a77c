"""Draws without an address: refused, for what is drawn from a stream depends on who drew before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.methods.base import Method


@contextmanager
def without_draws(method: Method, device: torch.device) -> Iterator[None]:
    """What a method and its model say in the meantime must be the same in another engine, and after a resume.

    Raises:
        UserError: something has drawn from a generator of the whole process.
    """
    why = "it or its model draws from a global generator, of torch or of NumPy"
    hint = (
        "draw with protofed.randomness.uniform(turn.key, site, shape), at the server with server.draws(purpose), "
        "and use protofed.models.layers.Dropout"
    )
    drew, before = UserError("--method", method.name, why, hint=hint), _streams(device)
    try:
        yield
    except RuntimeError as error:
        if "randomness error mode" in str(error):  # vmap's words for a draw that all clients would share
            raise drew from None
        raise
    if not all(map(torch.equal, before, _streams(device))):
        raise drew


def _streams(device: torch.device) -> list[Tensor]:
    """The states of the process's generators."""
    state: dict[str, Any] = dict(np.random.get_state(legacy=False))["state"]
    numbers = torch.as_tensor(state["key"].astype(np.int64)), torch.tensor(state["pos"])
    found = [torch.get_rng_state(), *numbers]
    return [*found, torch.cuda.get_rng_state(device)] if device.type == "cuda" else found
