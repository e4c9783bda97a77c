"""EfficientNet-Lite0 (Tan and Le, ICML 2019): EfficientNet-B0 with ReLU6 and without squeeze-and-excitation."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

from protofed.models.inputs import picture
from protofed.models.layers import BatchNorm, he_
from protofed.models.output import Output

# Kernel, stride, expansion, channels, repeats: the paper's Table 1.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow's SAME: where the padding is odd, there is one more below and to the right."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.steps = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.steps
        height, width = (max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:])
        return super().forward(pad(x, (width // 2, width - width // 2, height // 2, height - height // 2)))


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(SameConv(inputs, outputs, kernel, stride, groups), BatchNorm(outputs, eps=1e-3, momentum=0.01))


class LiteBlock(nn.Module):
    """Widen, filter each channel, narrow; with a shortcut where what comes in has the shape of what goes out."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.widen = nn.Sequential(_layer(inputs, wide, 1), nn.ReLU6()) if expansion > 1 else nn.Identity()
        self.filter = nn.Sequential(_layer(wide, wide, kernel, stride, wide), nn.ReLU6())
        self.narrow = _layer(wide, outputs, 1)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(self.filter(self.widen(x)))
        return x + out if self.residual else out


class EfficientNetLite0(nn.Module):
    """1280-d features."""

    feature_size = 1280

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        inputs = 32
        self.stem = nn.Sequential(_layer(picture(shape)[0], inputs, 3, 2), nn.ReLU6())
        self.blocks = nn.Sequential()
        for kernel, stride, expansion, outputs, repeats in STAGES:
            for place in range(repeats):
                self.blocks.append(LiteBlock(inputs, outputs, kernel, 1 if place else stride, expansion))
                inputs = outputs
        self.last = nn.Sequential(_layer(inputs, self.feature_size, 1), nn.ReLU6())
        self.head = nn.Linear(self.feature_size, classes)
        he_(self)

    def forward(self, x: Tensor) -> Output:
        features = self.last(self.blocks(self.stem(x))).mean((-2, -1))
        return Output(features, self.head(features))
