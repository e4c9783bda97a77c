"""The networks of MP-FedCL: an MLP on images, and its upper part on ready-made features."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import normalize

from protofed.models.output import Output


class Head(nn.Module):
    """input-256-classes; the 256 hidden units are the feature.

    With `unit`, features and logits are cut at 0 and scaled to length 1, as in FedPCL's code; MP-FedCL's Table III has
    that ReLU after the last layer too. Cross-entropy then stays above log(1 + 9/e) = 1.46 with ten classes.
    """

    feature_size = 256

    def __init__(self, shape: tuple[int, int, int], classes: int, unit: bool = False) -> None:
        super().__init__()
        self.unit = unit
        self.hidden = nn.Linear(math.prod(shape), self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        hidden = self.hidden(x.flatten(1))
        if not self.unit:
            features = hidden.relu()
            return Output(features, self.head(features), (hidden,))
        features = normalize(hidden.relu(), dim=1)
        return Output(features, normalize(self.head(features).relu(), dim=1), (hidden,))


class Mlp(Head):
    """input-512-512 (`encoder`), then 256-classes, as in Head."""

    def __init__(self, shape: tuple[int, int, int], classes: int, unit: bool = False) -> None:
        super().__init__((512, 1, 1), classes, unit)
        self.encoder = nn.ModuleList([nn.Linear(math.prod(shape), 512), nn.Linear(512, 512)])

    def forward(self, x: Tensor) -> Output:
        first = self.encoder[0](x.flatten(1))
        second = self.encoder[1](first.relu())
        out = super().forward(second.relu())
        return Output(out.features, out.logits, (first, second, *out.blocks))
