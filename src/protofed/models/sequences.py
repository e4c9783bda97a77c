"""Models of sequences: series [channels, steps] and token ids [length], whose padding changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from protofed.data.preparation import Shape
from protofed.errors import UserError
from protofed.models.inputs import unfit
from protofed.models.layers import Dropout
from protofed.models.output import Output

EMBEDDED = 64
"""Numbers that stand for a token."""
WIDTH = 64
"""Numbers that a model holds of each step."""


class Steps(nn.Module):
    """The steps of a sequence and which of them are real: [B, T, width] and [B, T, 1], padding being 0 in both."""

    def __init__(self, shape: Sequence[int], longest: int) -> None:
        super().__init__()
        known = Shape.of(shape)
        if len(known) != (1 if known.tokens else 2) or (known.masked and known[0] < 2):
            raise unfit(known, "series [channels, steps] or token ids [length]")
        if known[-1] > longest:  # a card is somebody's word, and what a model makes of its sample takes memory
            raise UserError(
                "samples", known[-1], f"it takes {longest} steps at most, and these samples have {known[-1]}"
            )
        self.masked = known.masked
        self.embedding = nn.Embedding(known.tokens, EMBEDDED) if known.tokens else None
        self.width = EMBEDDED if known.tokens else known[0] - known.masked

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.embedding is not None:
            steps = self.embedding(x)
            real = (x != 0).to(steps.dtype).unsqueeze(-1)
            return steps * real, real
        x = x.mT
        return (x[..., :-1], x[..., -1:]) if self.masked else (x, torch.ones_like(x[..., :1]))


def mean_of_real(steps: Tensor, real: Tensor) -> Tensor:
    """The mean over the real steps [B, D]; 0 where there is none."""
    return (steps * real).sum(1) / real.sum(1).clamp(min=1)


class SequenceNet(nn.Module):
    """Steps, what a subclass makes of them (`encode`: [B, `width`]), a 128-d feature (`hidden`) and `head`."""

    feature_size = 128
    longest = 4096
    width = WIDTH

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.steps = Steps(shape, self.longest)
        self.prepare(self.steps.width)
        self.hidden = nn.Linear(self.width, self.feature_size)
        self.head = nn.Linear(self.feature_size, classes)

    def prepare(self, inputs: int) -> None:
        """Make the layers of `encode`, which gets so many numbers per step."""
        raise NotImplementedError

    def encode(self, steps: Tensor, real: Tensor) -> Tensor:
        """One vector [B, width] of steps [B, T, inputs], of which `real` [B, T, 1] are there."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Output:
        hidden = self.hidden(self.encode(*self.steps(x)))
        features = hidden.relu()
        return Output(features, self.head(features), (hidden,))


class EmbeddingBag(SequenceNet):
    """The mean of the tokens' vectors, and a hidden layer: words without their order."""

    longest = 2**15

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        if not Shape.of(shape).tokens:
            raise unfit(shape, "token ids [length]")
        super().__init__(shape, classes)

    def prepare(self, inputs: int) -> None:
        """Nothing besides the embedding."""

    def encode(self, steps: Tensor, real: Tensor) -> Tensor:
        return mean_of_real(steps, real)


class Cnn1d(SequenceNet):
    """Three convolutions over time with ReLU; the feature sees the mean of each channel over the real steps."""

    longest = 2**15

    def prepare(self, inputs: int) -> None:
        sizes = (inputs, WIDTH, WIDTH), (7, 5, 3)
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, WIDTH, kernel, padding=kernel // 2) for channels, kernel in zip(*sizes, strict=True)
        )

    def encode(self, steps: Tensor, real: Tensor) -> Tensor:
        x, there = steps.mT, real.mT
        for conv in self.convs:
            x = conv(x).relu() * there  # padding stays 0, as what lies beyond the ends is
        return mean_of_real(x.mT, real)


class Gru(SequenceNet):
    """A gated recurrent unit, written out so that vmap maps it; its state after the last real step is what is seen."""

    def prepare(self, inputs: int) -> None:
        self.entry, self.state = nn.Linear(inputs, 3 * WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def encode(self, steps: Tensor, real: Tensor) -> Tensor:
        given = self.entry(steps)
        state = torch.zeros_like(given[:, 0, :WIDTH])
        for now, there in zip(given.unbind(1), real.unbind(1), strict=True):
            before = self.state(state)
            (reset, keep, new), (old_reset, old_keep, old) = now.chunk(3, -1), before.chunk(3, -1)
            keep = (keep + old_keep).sigmoid()
            new = (new + (reset + old_reset).sigmoid() * old).tanh()
            state = state + there * (1 - keep) * (new - state)
        return state


class TransformerBlock(nn.Module):
    """Attention among the real steps, then two layers for each; both are added to what comes in, normalised before."""

    heads = 4

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        q, k, v = (
            torch.unflatten(part, -1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scores = q @ k.mT / math.sqrt(WIDTH // self.heads)  # [B, heads, T, T]
        # The least number instead of -inf: where nothing is real the softmax is even, not 0/0.
        scores = scores.masked_fill(real.mT.unsqueeze(1) == 0, torch.finfo(scores.dtype).min)
        x = x + self.dropout(self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(self.wide(self.second_norm(x)).relu()))  # type: ignore[no-any-return]


class Transformer(SequenceNet):
    """A small encoder: two blocks with four heads, sinusoidal positions, and the mean over the real steps."""

    longest = 2048

    def prepare(self, inputs: int) -> None:
        self.entry = nn.Linear(inputs, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(0.1) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def encode(self, steps: Tensor, real: Tensor) -> Tensor:
        x = self.entry(steps)
        x = x + positions(x.shape[1], WIDTH).to(x)
        for block in self.blocks:
            x = block(x, real)
        return mean_of_real(self.norm(x), real)


def positions(steps: int, width: int) -> Tensor:
    """Sine and cosine of each step's number at wavelengths from 2π to 20000π [steps, width]."""
    rates = torch.exp(-math.log(10_000) * torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(steps, dtype=torch.float64).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
