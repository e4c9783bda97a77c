"""Random cases for the tests of the prototypes room; a case is named by its sizes and its seed."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

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
