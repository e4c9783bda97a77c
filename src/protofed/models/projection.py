"""A model with a projection head between its features and its classifier."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from protofed.models.output import Output


class Projected(nn.Module):
    """MOON's projection head, Linear(F, F)-ReLU-Linear(F, 256), on any model; the classifier moves behind it."""

    feature_size = 256

    def __init__(self, body: nn.Module, classes: int) -> None:
        super().__init__()
        size = cast(int, body.feature_size)
        body.head = nn.Identity()  # it would be averaged and sent without being used
        self.body = body
        self.projection = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, self.feature_size))
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        out = self.body(x)
        features = self.projection(out.features)
        return Output(features, self.head(features), out.blocks)
