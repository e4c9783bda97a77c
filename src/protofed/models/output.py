"""What every model returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """Features [B, D], logits [B, C], and the output of each stage before its ReLU (maps stay maps)."""

    features: Tensor
    logits: Tensor
    blocks: tuple[Tensor, ...]
