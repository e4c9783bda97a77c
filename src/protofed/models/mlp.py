"""The networks of MP-FedCL: an MLP on images, and its upper part on ready-made features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import normalize

from protofed.models.inputs import numbers
from protofed.models.output import Output


class Mlp(nn.Module):
    """input-512-512 (`encoder`), then 256 (`hidden`, the feature) and `head`, with ReLU between them.

    With `unit`, features and logits are cut at 0 and scaled to length 1, as in FedPCL's code; MP-FedCL's Table III has
    that ReLU after the last layer too. Cross-entropy then stays above log(1 + 9/e) = 1.46 with ten classes.
    """

    feature_size = 256

    def __init__(
        self, shape: Sequence[int], classes: int, widths: tuple[int, ...] = (512, 512), unit: bool = False
    ) -> None:
        super().__init__()
        sizes = (numbers(shape), *widths)
        self.encoder = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, widths, strict=False))
        self.hidden = nn.Linear(sizes[-1], self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)
        self.unit = unit

    def forward(self, x: Tensor) -> Output:
        x = x.flatten(1)
        blocks = []
        for layer in (*self.encoder, self.hidden):
            blocks.append(layer(x))
            x = blocks[-1].relu()
        if not self.unit:
            return Output(x, self.head(x), tuple(blocks))
        features = normalize(x, dim=1)
        return Output(features, normalize(self.head(features).relu(), dim=1), tuple(blocks))
