"""Residual networks of basic blocks: ResNet-10 for small images, ResNet-18 as in torchvision."""

from __future__ import annotations

from torch import Tensor, nn

from protofed.models.inputs import picture
from protofed.models.layers import conv_norm, he_
from protofed.models.output import Output

WIDTHS = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut. The ReLU comes first, so what a block returns is before its ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride)
        self.second = conv_norm(outputs, outputs, 3)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        x = x.relu()
        return self.second(self.first(x).relu()) + self.shortcut(x)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem and four stages of basic blocks; the block features are FedRCL's levels 0 to 4."""

    feature_size = WIDTHS[-1]

    def __init__(self, classes: int, stem: nn.Module, pool: nn.Module, depths: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.stem = stem
        self.pool = pool
        self.stages = nn.ModuleList()
        inputs = WIDTHS[0]
        for width, depth in zip(WIDTHS, depths, strict=True):
            first = BasicBlock(inputs, width, stride=1 if width == inputs else 2)
            self.stages.append(nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(depth - 1))))
            inputs = width
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        x = self.stem(x)
        blocks = [x]
        x = self.pool(x)  # before the ReLU instead of after it: maximum and ReLU commute
        for stage in self.stages:
            x = stage(x)
            blocks.append(x)
        features = x.relu().mean((-2, -1))
        return Output(features, self.head(features), tuple(blocks))


def resnet10(shape: tuple[int, int, int], classes: int) -> ResNet:
    """ResNet-10 of FPL and FedSC: 3x3 stem at full resolution, no pooling.

    Its weights begin as torch draws them, as in their code; He's, about twice as large, cost FedAvg ten points on
    Digit-5 (docs/results).
    """
    return ResNet(classes, conv_norm(picture(shape)[0], 64, 3), nn.Identity(), (1, 1, 1, 1))


def resnet18(shape: tuple[int, int, int], classes: int) -> ResNet:
    """ResNet-18 as in torchvision: 7x7 stem with stride 2, then pooling."""
    return he_(ResNet(classes, conv_norm(picture(shape)[0], 64, 7, 2), nn.MaxPool2d(3, 2, 1), (2, 2, 2, 2)))


def resnet18_fine(shape: tuple[int, int, int], classes: int) -> ResNet:
    """FedProto's other ResNet-18: the stem's stride is 1, the pooling's 4."""
    return he_(ResNet(classes, conv_norm(picture(shape)[0], 64, 7), nn.MaxPool2d(3, 4, 1), (2, 2, 2, 2)))
