"""Layers that give the same result in a loop, under vmap, and in another process.

Dropout draws from a hash of (key, site, element) instead of a stream, and BatchNorm leaves padded samples out. Both
learn what they need about the current step from `step`, which an engine opens around a client's loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.randomness import bits

M = TypeVar("M", bound=nn.Module)


@dataclass
class Step:
    """What layers may know about the step being taken: the dropout key and which samples are real."""

    key: Tensor
    mask: Tensor | None  # [B], None when every sample is real
    sites: int = 0  # dropout calls so far, so that each one draws its own mask

    def next_site(self) -> int:
        self.sites += 1
        return self.sites


_current: ContextVar[Step | None] = ContextVar("step", default=None)


@contextmanager
def step(key: Tensor, mask: Tensor | None = None) -> Iterator[None]:
    """Open a training step for one client, or under vmap for one client of many."""
    token = _current.set(Step(key, mask))
    try:
        yield
    finally:
        _current.reset(token)


def _open_step(layer: nn.Module) -> Step:
    current = _current.get()
    if current is None:
        raise RuntimeError(
            f"{type(layer).__name__} in train mode needs protofed.models.layers.step(key) around the call"
        )
    return current


class Dropout(nn.Module):
    """Dropout whose mask is a hash of the step's key."""

    spatial = False

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError("dropout probability", p, "it must be at least 0 and below 1")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        current = _open_step(self)
        shape = x.shape[:2] + (1,) * (x.dim() - 2) if self.spatial else x.shape
        keep = bits(current.key, current.next_site(), tuple(shape)) >= int(self.p * 2**32)
        return x * (keep / (1 - self.p)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Dropout2d(Dropout):
    """Dropout of whole channels."""

    spatial = True


class BatchNorm(nn.Module):
    """Batch normalisation over axis 1 that ignores padded samples; a single sample uses the running statistics."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        mask = _open_step(self).mask if self.training else None
        if (mask is None and len(x) > 1) if self.training else not torch.is_grad_enabled():
            parts = (self.running_mean, self.running_var, self.weight, self.bias)
            return nn.functional.batch_norm(x, *parts, self.training, self.momentum, self.eps)
        if mask is None:
            # A copy, because a training forward may update the buffer in place before this one's backward.
            mean, var = self.running_mean.clone(), self.running_var
        else:
            mean, var = self._masked_statistics(x.to(self.running_mean.dtype), mask)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        scale = (var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        return (x * scale.view(shape) + shift.view(shape)).to(x.dtype)

    def _masked_statistics(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        over = [axis for axis in range(x.dim()) if axis != 1]
        weight = mask.to(x.dtype).view(-1, *(1,) * (x.dim() - 1))
        samples = mask.sum()
        number = (samples * x.shape[2:].numel()).to(x.dtype).clamp(min=1)  # 1 when all is padding: no 0/0
        mean = (x * weight).sum(over) / number
        centred = (x - mean.view(1, -1, *(1,) * (x.dim() - 2))) * weight
        var = centred.square().sum(over) / number
        single = samples <= 1
        with torch.no_grad():
            rate = self.momentum * (~single).to(x.dtype)
            unbiased = var * (number / (number - 1).clamp(min=1))
            self.running_mean.add_(rate * (mean - self.running_mean))
            self.running_var.add_(rate * (unbiased - self.running_var))
        return torch.where(single, self.running_mean, mean), torch.where(single, self.running_var, var)

    def extra_repr(self) -> str:
        return f"{len(self.running_mean)}, eps={self.eps}, momentum={self.momentum}"


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution that keeps the side (up to its stride), and a BatchNorm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, BatchNorm(outputs))


def he_(module: M) -> M:
    """The same, with He's initial weights in every convolution, scaled by its outputs, as in torchvision."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return module
