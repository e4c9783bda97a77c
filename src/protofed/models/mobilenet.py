"""MobileNetV2 (Sandler et al., CVPR 2018) at width 1, as in torchvision."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu6

from protofed.models.inputs import picture
from protofed.models.layers import Dropout, conv_norm, he_
from protofed.models.output import Output

# Expansion, channels, repeats, stride: the paper's Table 2.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; the narrow ends are linear and joined by a shortcut where they match."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.widen = nn.Sequential(conv_norm(inputs, wide, 1), nn.ReLU6()) if expansion > 1 else nn.Identity()
        self.filter = nn.Sequential(conv_norm(wide, wide, 3, stride, groups=wide), nn.ReLU6())
        self.narrow = conv_norm(wide, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(self.filter(self.widen(x)))
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """1280-d features. Images with no side above 64 keep their size in the stem and in the second stage."""

    feature_size = 1280

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, *sides = picture(shape)
        small = max(sides) <= 64
        self.stem = conv_norm(channels, 32, 3, 1 if small else 2)
        self.stages = nn.ModuleList()
        inputs = 32
        for index, (expansion, outputs, repeats, stride) in enumerate(STAGES):
            first = InvertedResidual(inputs, outputs, 1 if small and index == 1 else stride, expansion)
            rest = (InvertedResidual(outputs, outputs, 1, expansion) for _ in range(repeats - 1))
            self.stages.append(nn.Sequential(first, *rest))
            inputs = outputs
        self.last = conv_norm(inputs, self.feature_size, 1)
        self.dropout = Dropout(0.2)
        self.head = nn.Linear(self.feature_size, classes)
        he_(self)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Output:
        x = self.stem(x)
        blocks = [x]
        x = relu6(x)
        for stage in self.stages:
            x = stage(x)
            blocks.append(x)
        x = self.last(x)
        blocks.append(x)
        features = relu6(x).mean((-2, -1))
        return Output(features, self.head(self.dropout(features)), tuple(blocks))
