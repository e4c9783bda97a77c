"""MiniLM-L6 (Wang et al., NeurIPS 2020) as sentence-transformers uses it: a small BERT, one vector for a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from protofed.data.preparation import Shape
from protofed.errors import UserError
from protofed.models.inputs import unfit
from protofed.models.output import Output
from protofed.models.sequences import mean_of_real

LONGEST = 512
"""Places that there are vectors for."""
EPSILON = 1e-12


class BertBlock(nn.Module):
    """Attention among the real tokens, then two layers for each; the sum with what comes in is normalised."""

    heads = 12

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm, self.second_norm = (nn.LayerNorm(width, EPSILON) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Tokens [B, T, width], with what is added to the scores of padding [B, 1, 1, T]."""
        q, k, v = (torch.unflatten(part, -1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm(x + self.out(seen.transpose(1, 2).flatten(2)))
        out: Tensor = self.second_norm(x + self.narrow(gelu(self.wide(x))))
        return out


class MiniLm(nn.Module):
    """384-d features of unit length: the mean over the real tokens. Id 0 pads, and is no token of its vocabulary."""

    feature_size = 384

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        known = Shape.of(shape)
        if not known.tokens or len(known) != 1:
            raise unfit(known, "token ids [length]")
        if known[0] > LONGEST:
            raise UserError("samples", known[0], f"it takes {LONGEST} tokens at most")
        self.embedding = nn.Embedding(known.tokens, self.feature_size)
        self.places = nn.Parameter(torch.zeros(LONGEST, self.feature_size))
        self.norm = nn.LayerNorm(self.feature_size, EPSILON)
        self.blocks = nn.ModuleList(BertBlock(self.feature_size) for _ in range(6))
        self.head = nn.Linear(self.feature_size, classes)

    def forward(self, x: Tensor) -> Output:
        steps = self.norm(self.embedding(x) + self.places[: x.shape[1]])
        real = (x != 0).to(steps.dtype).unsqueeze(-1)
        mask = (1 - real.mT.unsqueeze(1)) * torch.finfo(steps.dtype).min
        for block in self.blocks:
            steps = block(steps, mask)
        features = normalize(mean_of_real(steps, real), dim=-1)
        return Output(features, self.head(features))
