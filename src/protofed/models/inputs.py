"""What a model can take: the shape of its samples, or one clear line that says why not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protofed.data.preparation import Shape
from protofed.errors import UserError


def picture(shape: Sequence[int]) -> tuple[int, int, int]:
    """Channels, height and width of pictures, for a model that takes nothing else."""
    if len(shape) != 3 or Shape.of(shape).tokens:
        raise unfit(shape, "pictures [channels, height, width]")
    channels, height, width = shape
    return channels, height, width


def numbers(shape: Sequence[int]) -> int:
    """How many numbers a sample has, for a model that takes any but token ids, which are names."""
    if Shape.of(shape).tokens:
        raise unfit(shape, "numbers")
    return math.prod(shape)


def unfit(shape: Sequence[int], wanted: str) -> UserError:
    """The error for samples that a model cannot take; `build` says which model."""
    ids = Shape.of(shape).tokens
    got = f"token ids {list(shape)}" if ids else str(list(shape))
    fitting = "embedding-bag, gru or transformer" if ids else "mlp" if len(shape) != 2 else "cnn1d, gru or mlp"
    return UserError("samples", got, f"it takes {wanted}, and these samples are {got}", hint=f"{fitting} would do")
