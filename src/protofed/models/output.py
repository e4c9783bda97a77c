"""What every model returns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

__all__ = ["Output"]


class Output(NamedTuple):
    """Hold what a model returns for a batch.

    Args:
        features: the input of the head [B, D].
        logits: the output of the head [B, C].
        blocks: the output of each stage before its ReLU, [B, ...]; maps stay maps [B, channels, height, width].
        more: what else the model says, by name, for a method that has extended it: another head's logits [B, C].

    Example:
        >>> import torch
        >>> from protofed.models.output import Output
        >>> out = Output(features=torch.ones(2, 4), logits=torch.zeros(2, 3), blocks=(torch.ones(2, 4),))
        >>> out.logits.softmax(-1)[0].sum().item()
        1.0
    """

    features: Tensor
    logits: Tensor
    blocks: tuple[Tensor, ...] = ()
    more: Mapping[str, Tensor] = MappingProxyType({})
