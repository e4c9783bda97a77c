"""What happens to samples before a model sees them, and what a model has to know of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.internal.schema import check_type

Kind = Literal["none", "pixels", "standardise"]
"""Samples stay as they are; pixels are scaled to 0..1 and standardised; numbers are standardised."""

PIXELS = 255
"""The largest value of a pixel."""


class Shape(tuple[int, ...]):
    """The sizes of one sample as a model sees it: a tuple, with what sizes alone do not tell.

    Args:
        sizes: those of a sample, such as (channels, height, width), (features,), (channels, steps) or (length,).
        tokens: of token ids, how many there may be, from 0, which pads; 0 for numbers.
        masked: whether the last channel of a series says which steps are there (1) and which only pad it (0).

    Example:
        >>> from protofed.data import Shape
        >>> Shape((28,), tokens=1000), Shape((28,), tokens=1000).tokens
        ((28,), 1000)
    """

    tokens: int
    masked: bool

    def __new__(cls, sizes: Sequence[int], tokens: int = 0, masked: bool = False) -> Self:
        made = super().__new__(cls, sizes)
        made.tokens, made.masked = tokens, masked
        return made

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Shape:
        """Return sizes as a shape; one stays as it is."""
        return sizes if isinstance(sizes, Shape) else cls(sizes)

    def example(self, number: int) -> Tensor:
        """Make-believe samples [number, *sizes], to try a model on."""
        numbers = number * math.prod(self)
        if self.tokens:
            return (torch.arange(numbers) % self.tokens).view(number, *self)
        x = torch.linspace(-1, 1, numbers).view(number, *self)
        if self.masked:
            x[:, -1] = 1
        return x


@dataclass(frozen=True)
class Preparation:
    """Say what happens to samples before a model sees them.

    Args:
        kind: `none`: they stay as they are; `pixels`: they are divided by 255 and then standardised; `standardise`: the
            mean is taken from them, and they are divided by the std.
        mean: of each channel, which is the first axis of a sample; of pixels scaled to 0..1. Empty for `none`.
        std: likewise, above 0.
        tokens: of token ids, how many there may be; 0 for numbers. See `Shape`.
        masked: whether the last channel of a series is its mask, which stays as it is. See `Shape`.

    Raises:
        UserError: mean and std are not of one length, a std is not above 0, or token ids would be standardised.

    Example:
        >>> import torch
        >>> from protofed.data import Preparation
        >>> Preparation.of(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
        Preparation(kind='standardise', mean=(1.0, 5.0), std=(1.0, 1.0), tokens=0, masked=False)
        >>> Preparation.of(torch.tensor([[3, 1, 0], [2, 0, 0]])).tokens
        4
    """

    kind: Kind = "none"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    tokens: int = 0
    masked: bool = False

    def __post_init__(self) -> None:
        for name, hint in (("kind", Kind), ("tokens", int), ("masked", bool)):
            check_type(name, getattr(self, name), hint)
        if self.kind == "none" and (self.mean or self.std):
            raise UserError("mean and std", (self.mean, self.std), "samples that stay as they are need none")
        if self.tokens and self.kind != "none":
            raise UserError("preparation", self.kind, "token ids are names, and stay as they are")
        check_statistics(self.mean, self.std, len(self.mean))

    @classmethod
    def of(cls, x: Tensor, kind: Kind | None = None, masked: bool = False) -> Preparation:
        """Return the preparation of training samples, with their own statistics.

        Args:
            x: training samples [n, channels, ...].
            kind: what is done; unless given, `pixels` for bytes [n, channels, height, width], `none` for whole numbers,
                which are token ids, and `standardise` for others.
            masked: see `Shape`.

        Returns:
            The preparation; a constant channel has std 1.
        """
        if not x.is_floating_point() and x.dtype != torch.uint8:
            if kind not in (None, "none"):
                raise UserError("--normalise", kind, "token ids are names, and stay as they are")
            return cls(tokens=int(x.max()) + 1 if x.numel() else 1)
        if kind is None:
            kind = "pixels" if x.dtype == torch.uint8 and x.dim() == 4 else "standardise"
        if kind == "none":
            return cls(masked=masked)
        mean, std = statistics(x, kind, masked)
        if not all(map(math.isfinite, mean)):  # which costs no look at all numbers
            check_finite(x)
        return cls(kind, mean, std, masked=masked)

    def shape(self, x: Tensor) -> Shape:
        """Return the shape of one of the samples [n, ...], as a model sees it."""
        return Shape(x.shape[1:], self.tokens, self.masked)

    def affine(self, dimensions: int) -> tuple[Tensor, Tensor]:
        """Return what is taken from samples and what they are multiplied with, float64 [channels, 1, ...].

        Args:
            dimensions: of a sample.
        """
        unit = PIXELS if self.kind == "pixels" else 1
        mean, std = (
            torch.tensor(part, dtype=torch.float64).view(-1, *(1,) * (dimensions - 1)) for part in (self.mean, self.std)
        )
        return unit * mean, 1 / (unit * std)

    def applied(self, x: Tensor) -> Tensor:
        """Return samples [n, ...] as a model sees them: token ids as they are, all else as float32."""
        if self.tokens:
            return x
        if self.kind == "none":
            return x.float()
        middle, scale = (part.float().to(x.device) for part in self.affine(x.dim() - 1))
        seen: Tensor = (x - middle) * scale
        return seen * x[:, -1:] if self.masked else seen  # what pads a series stays 0

    def check(self, x: Tensor) -> None:
        """Raise unless it fits samples [n, ...]."""
        if self.kind != "none" and len(self.mean) != x.shape[1]:
            raise UserError("mean and std", (self.mean, self.std), f"give {x.shape[1]} of each, one per channel")
        if self.kind == "pixels" and x.dtype != torch.uint8:
            raise UserError("preparation", self.kind, f"pixels are bytes from 0 to 255, not {x.dtype}")
        if not (x.is_floating_point() or x.dtype == torch.uint8) and not int(x.max()) < self.tokens:
            why = f"ids go up to {int(x.max())}, and the preparation names {self.tokens} tokens"
            raise UserError("tokens", self.tokens, why)
        if self.tokens and x.is_floating_point():
            raise UserError("tokens", self.tokens, "token ids are whole numbers")

    @classmethod
    def from_json(cls, said: Any) -> Preparation:
        """Read what `dataclasses.asdict` and JSON made of one."""
        if not isinstance(said, dict) or not said.keys() <= {"kind", "mean", "std", "tokens", "masked"}:
            raise UserError("preparation", said, "it must name kind, mean, std, tokens and masked, and nothing else")
        for name in ("mean", "std"):
            check_type(name, said.get(name, []), list)
        return cls(**said | {name: tuple(said.get(name, ())) for name in ("mean", "std")})


def statistics(x: Tensor, kind: Kind, masked: bool = False) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel of samples [n, channels, ...], of pixels scaled to 0..1; std 1 for a constant."""
    if kind == "pixels":
        levels = torch.arange(PIXELS + 1, dtype=torch.float64) / PIXELS
        counts = [torch.bincount(channel.reshape(-1), minlength=PIXELS + 1) for channel in x.unbind(1)]  # exact, lean
        parts = torch.stack(counts).double() / max(1, x[:, 0].numel())
        mean = parts @ levels
        std = (parts * (levels - mean.unsqueeze(1)) ** 2).sum(1).sqrt()
    elif masked:  # of the steps that are there; the mask itself stays as it is
        real, series = x[:, -1:].double(), x[:, :-1].double()
        number = real.sum().clamp(min=1)
        mean = (series * real).sum((0, 2)) / number
        std = ((series - mean.view(-1, 1)).square() * real).sum((0, 2)).div(number).sqrt()
        mean, std = torch.cat([mean, mean.new_zeros(1)]), torch.cat([std, std.new_ones(1)])
    else:
        rest = [axis for axis in range(x.dim()) if axis != 1]
        std, mean = torch.std_mean(x.double(), rest, correction=0)
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


def check_finite(x: Tensor) -> None:
    """Raise if a number of samples [n, ...] is not finite."""
    if x.is_floating_point() and not bool(x.isfinite().all()):
        row = int((~x.flatten(1).isfinite().all(1)).nonzero()[0])
        raise UserError("x", f"sample {row}", "it holds a number that is not finite")


def check_statistics(mean: Sequence[Any], std: Sequence[Any], channels: int) -> None:
    """Raise unless mean and std are finite numbers, one per channel, that can be divided by."""
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels:
            raise UserError(name, numbers, "it must hold a number for each channel")
        for number in numbers:
            check_type(name, number, float)
            if not math.isfinite(number):
                raise UserError(name, number, "it must be a finite number")
    if channels and min(std) <= 0:
        raise UserError("std", std, "it must be above 0")
