"""Random cases for the tests of the prototypes room; a case is named by its sizes and its seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from protofed.prototypes import Prototypes

quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**20)


def random_labels(*shape: int, classes: int, seed: int) -> Tensor:
    """Labels from −1 (padding) to classes − 1; some classes are missing at some clients."""
    return torch.randint(-1, classes, shape, generator=torch.Generator().manual_seed(seed))


def random_features(*shape: int, seed: int) -> Tensor:
    """Gaussian features in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_prototypes(*shape: int, seed: int, empty: float = 0.3) -> Prototypes:
    """Prototypes [..., C, M, D], a fraction `empty` of the slots empty, one class in four absent everywhere."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, shape[:-1], generator=rng).double()
    counts *= torch.rand(shape[:-1], generator=rng) >= empty
    if empty:
        counts *= (torch.rand(shape[-3], generator=rng) >= 0.25).unsqueeze(-1)
    vectors = torch.randn(shape, generator=rng, dtype=torch.float64) * (counts > 0).unsqueeze(-1)
    return Prototypes(vectors, counts)


class Dispatched(TorchDispatchMode):
    """Notes every operation while it is open: how often each was called, and the largest tensor that one made."""

    waits = ("_local_scalar_dense", "nonzero", "equal", "bincount", "masked_select", "_unique2")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not type it
        self.calls: Counter[str] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.calls[func.overloadpacket.__name__] += 1
        sizes = [x.numel() for x in (made if isinstance(made, tuple) else (made,)) if isinstance(x, Tensor)]
        self.largest = max([self.largest, *sizes])
        return made

    def host_waits(self) -> int:
        """How often a GPU would be asked for a number."""
        return sum(self.calls[name] for name in self.waits)
