"""Randomness with an address: every draw is keyed by (seed, purpose, client, round), never by the order of calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def key(*address: int | str) -> int:
    """A 32-bit number that stands for an address such as (seed, "batches", client, round)."""
    text = "/".join(str(part) for part in address)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def generator(*address: int | str) -> torch.Generator:
    """A CPU generator for an address; the same address always gives the same stream."""
    text = "/".join(str(part) for part in address)
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return torch.Generator().manual_seed(seed >> 1)


def noise(*address: int | str) -> np.random.Generator:
    """One with 128 bits of its own, for noise that hides something: torch's has 32, too few for many streams."""
    text = "/".join(str(part) for part in address)
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little"))
    )


def _mix(x: Tensor) -> Tensor:
    """One round of integer mixing on 32-bit words held in int64 (products stay below 2**63)."""
    if x.is_cuda:
        return cast(Tensor, _OneKernel.apply(x))  # type: ignore[no-untyped-call]  # torch does not type it
    x = (x ^ (x >> 16)) * 0x7FEB352D & _WORD
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & _WORD
    return x ^ (x >> 16)


class _OneKernel(torch.autograd.Function):
    """`_mix` as one kernel of a GPU instead of ten: dropout is hashed at every step."""

    SOURCE = """template <typename T> T mix(T x) {
        x = ((x ^ (x >> 16)) * T(0x7FEB352D)) & T(0xFFFFFFFF);
        x = ((x ^ (x >> 15)) * T(0x2C1B3C6D)) & T(0xFFFFFFFF);
        return x ^ (x >> 16);
    }"""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _kernel(_OneKernel.SOURCE)(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        """Whole numbers have no gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:  # noqa: ARG004
        return _mix(x), in_dims[0]


@cache
def _kernel(source: str) -> Callable[[Tensor], Tensor]:
    """An elementwise function in CUDA C++, compiled at its first call."""
    return cast(Callable[[Tensor], Tensor], torch.cuda.jiterator._create_jit_fn(source))


@lru_cache(maxsize=256)
def _elements(site: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    count = torch.Size(shape).numel()
    return _mix(torch.arange(count, device=device) + (site * 0x9E3779B1 & _WORD) & _WORD).view(shape)


def bits(keys: Tensor, site: int, shape: tuple[int, ...]) -> Tensor:
    """32 random bits each: a hash of (key, site, element), so no stream and no order.

    `keys` holds one key per leading entry; the result has the shape keys.shape + shape.
    """
    return _mix(_elements(site, shape, keys.device) ^ keys.view(keys.shape + (1,) * len(shape)))


def uniform(keys: Tensor, site: int, shape: tuple[int, ...]) -> Tensor:
    """The same as numbers in [0, 1)."""
    return bits(keys, site, shape).to(torch.float64) / 2**32


def for_draws(key: Tensor) -> Tensor:
    """The key, made from that of a step, by which a loss draws: dropout has the step's own."""
    return _mix(key ^ 0x5BD1E995)


def step_keys(key: Tensor, steps: int, first: Tensor | int = 0) -> Tensor:
    """A key for each of some steps of a turn, from step number `first` [...] on: [..., steps] from keys [...]."""
    start = (key + first).unsqueeze(-1)
    return _mix(start + torch.arange(steps, device=key.device) & _WORD)
