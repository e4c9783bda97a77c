"""Small convolutional networks: FedProto's, FedAvg's, and the four-block encoder of prototypical networks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from protofed.models.inputs import picture
from protofed.models.layers import BatchNorm, Dropout, Dropout2d
from protofed.models.output import Output


class Cnn(nn.Module):
    """FedProto's CNN: two convolutions and a 50-d feature. Images with a side below 16 are padded by 2."""

    feature_size = 50

    def __init__(self, shape: tuple[int, int, int], classes: int, channels: int = 20, first: int = 5) -> None:
        super().__init__()
        inputs, *sides = picture(shape)
        padding = 2 if min(sides) < 16 else 0
        height, width = (((side - first + 1 + 2 * padding) // 2 - 4 + 2 * padding) // 2 for side in sides)
        self.conv1 = nn.Conv2d(inputs, 10, first, padding=padding)
        self.conv2 = nn.Conv2d(10, channels, 5, padding=padding)
        self.dropout2d = Dropout2d(0.5)
        self.hidden = nn.Linear(channels * height * width, self.feature_size)
        self.dropout = Dropout(0.5)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        first = max_pool2d(self.conv1(x), 2)
        second = max_pool2d(self.dropout2d(self.conv2(first.relu())), 2)
        hidden = self.hidden(second.relu().flatten(1))
        features = hidden.relu()
        return Output(features, self.head(self.dropout(features)), (first, second, hidden))


class FedAvgCnn(nn.Module):
    """FedAvg's CNN in PFLlib's form: 5x5 convolutions of 32 and 64 channels without padding, 512-d feature."""

    feature_size = 512

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        inputs, *sides = picture(shape)
        padding = 2 if min(sides) < 16 else 0
        height, width = (((side - 4 + 2 * padding) // 2 - 4 + 2 * padding) // 2 for side in sides)
        self.conv1 = nn.Conv2d(inputs, 32, 5, padding=padding)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=padding)
        self.hidden = nn.Linear(64 * height * width, self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        first = self.conv1(x)
        second = self.conv2(max_pool2d(first.relu(), 2))
        hidden = self.hidden(max_pool2d(second.relu(), 2).flatten(1))
        features = hidden.relu()
        return Output(features, self.head(features), (first, second, hidden))


class ProtoNet(nn.Module):
    """Snell et al.: four times 3x3 convolution (64), BatchNorm, ReLU, 2x2 pooling; a map of side 1 is not pooled."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        inputs, height, width = picture(shape)
        self.blocks = nn.ModuleList()
        for channels in (inputs, 64, 64, 64):
            self.blocks.append(nn.Sequential(nn.Conv2d(channels, 64, 3, padding=1), BatchNorm(64)))
            if min(height, width) > 1:
                height, width = height // 2, width // 2
        self.feature_size = 64 * height * width
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        blocks = []
        for block in self.blocks:
            blocks.append(block(x))
            x = blocks[-1].relu()
            if min(x.shape[-2:]) > 1:
                x = max_pool2d(x, 2)
        features = x.flatten(1)
        return Output(features, self.head(features), tuple(blocks))
