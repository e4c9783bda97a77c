"""The networks of MP-FedCL: an MLP on images, and its upper part on ready-made features."""

from __future__ import annotations

import math

from torch import Tensor, nn

from protofed.models.output import Output


class Head(nn.Module):
    """input-256-classes; the 256 hidden units are the feature."""

    feature_size = 256

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(shape), self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        hidden = self.hidden(x.flatten(1))
        features = hidden.relu()
        return Output(features, self.head(features), (hidden,))


class Mlp(nn.Module):
    """input-512-512 (`encoder`), then 256-classes (`hidden` and `head`, as in Head)."""

    feature_size = 256

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(math.prod(shape), 512), nn.Linear(512, 512)])
        self.hidden = nn.Linear(512, self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        x = x.flatten(1)
        blocks = []
        for layer in (*self.encoder, self.hidden):
            blocks.append(layer(x))
            x = blocks[-1].relu()
        return Output(x, self.head(x), tuple(blocks))
