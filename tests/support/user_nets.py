"""Networks as users write them: heads of many kinds and names, tied weights, attention, a transformer's interface."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protofed.models import Factory, Output

Shape = tuple[int, int, int]
Pair = tuple[Tensor, Tensor]


def body(shape: Shape, size: int = 6) -> nn.Sequential:
    """A small convolution and a dense layer."""
    inputs, height, width = shape
    return nn.Sequential(
        nn.Conv2d(inputs, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * -(-height // 2) * -(-width // 2), size),
        nn.Tanh(),
    )


class CosineHead(nn.Module):
    """logits = s · cos(z, w_c)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))
        self.scale = nn.Parameter(torch.tensor(10.0))

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * F.normalize(z, dim=-1) @ F.normalize(self.weight, dim=-1).mT


def mlp_head(features: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, classes))


class LogitsOnly(nn.Module):
    """torchvision's way: a last layer called `fc`, and logits alone."""

    def __init__(self, shape: Shape, classes: int, head: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.layers = body(shape)
        self.fc = head(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.fc(self.layers(x))
        return made


class Both(nn.Module):
    """Returns (features, logits); its classifier is called `classifier`, and dropout is in front of it."""

    def __init__(self, shape: Shape, classes: int, head: type[nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.layers = body(shape)
        self.dropout = nn.Dropout(0.2)
        self.classifier = head(6, classes)

    def forward(self, x: Tensor) -> Pair:
        features = self.layers(x)
        return features, self.classifier(self.dropout(features))


class Blocks(Both):
    """The same with block features."""

    def forward(self, x: Tensor) -> Output:  # type: ignore[override]
        first = self.layers[:2](x)
        features = self.layers[2:](first)
        return Output(features, self.classifier(self.dropout(features)), (first,))


class OwnHead(nn.Module):
    """Its classifier is called `head`, and is an MLP."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.head = mlp_head(6, classes)

    def forward(self, x: Tensor) -> Pair:
        features = self.layers(x)
        return features, self.head(features)


class Twice(nn.Module):
    """One layer in two places."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.fc(self.second(self.first(self.layers(x)).relu()).relu())
        return made


class Tied(nn.Module):
    """A language model's way: the classifier's weight is the table of an embedding."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.table = nn.Embedding(classes, 6)
        self.classifier = nn.Linear(6, classes)
        self.classifier.weight = self.table.weight

    def forward(self, x: Tensor) -> Pair:
        features = self.layers(x) + self.table.weight.mean(0)
        return features, self.classifier(features)


class Attends(nn.Module):
    """A transformer layer over the rows of an image, with torch's dropout everywhere."""

    def __init__(self, shape: Shape, classes: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(shape[2], 2, 12, dropout, batch_first=True)
        self.fc = nn.Linear(shape[2], classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.fc(self.layer(x.flatten(1, 2)).mean(1))
        return made


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.rows = nn.LSTM(shape[2], 6, batch_first=True)
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.fc(self.rows(x.flatten(1, 2))[0][:, -1])
        return made


# The interface of `transformers`, which the tests do not need.


@dataclass
class ImageClassifierOutput(OrderedDict[str, Tensor]):
    """Named outputs: logits, and hidden states where they are asked for."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


class ViTForImageClassification(nn.Module):
    """Patches, positions, a layer of attention, and `classifier` on the first token."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        size, patch = config.hidden_size, config.patch_size
        self.patches = nn.Conv2d(config.num_channels, size, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (config.image_size // patch) ** 2, size))
        self.attention = nn.MultiheadAttention(size, 2, dropout=config.attention_dropout, batch_first=True)
        self.layernorm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.classifier = nn.Linear(size, config.num_labels)

    def forward(self, pixel_values: Tensor, output_hidden_states: bool = False) -> ImageClassifierOutput:
        x = self.patches(pixel_values).flatten(2).mT
        x = self.dropout(torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions)
        states = [x]
        x = self.layernorm(x + self.attention(x, x, x, need_weights=False)[0])
        logits = self.classifier(x[:, 0])
        return ImageClassifierOutput(logits, (*states, x) if output_hidden_states else None)


class Adapted(nn.Module):
    """What docs/models.md shows."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        config = SimpleNamespace(num_channels=shape[0], image_size=shape[1], num_labels=classes, patch_size=4)
        config.hidden_size, config.attention_dropout, config.hidden_dropout = 8, 0.1, 0.1
        self.net = ViTForImageClassification(config)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.net(pixel_values=x).logits
        return made


NETS: dict[str, Factory] = {
    "fc": LogitsOnly,
    "cosine fc": partial(LogitsOnly, head=CosineHead),
    "classifier": Both,
    "cosine classifier": partial(Both, head=CosineHead),
    "mlp classifier": partial(Both, head=mlp_head),  # type: ignore[arg-type]
    "output": Blocks,
    "mlp head": OwnHead,
    "twice": Twice,
    "tied": Tied,
    "attention": Attends,
    "transformer": Adapted,
}
"""All that can be batched over clients."""
