"""A classifier on ready-made features, which are what prototypes are made of: nothing before them is trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from protofed.models.inputs import numbers
from protofed.models.output import Output


class Linear(nn.Module):
    """The input itself is the feature, and `head` the whole model."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.feature_size = numbers(shape)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        x = x.flatten(1)
        return Output(x, self.head(x), (x,))
