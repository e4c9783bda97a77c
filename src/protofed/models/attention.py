"""torch's attention with a dropout that is the same in a loop, under vmap, and in another process."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from protofed.models.layers import Dropout


class Attention(nn.MultiheadAttention):
    """nn.MultiheadAttention whose dropout of attention weights is a hash of the step's key."""

    drop: Dropout

    @classmethod
    def of(cls, layer: nn.MultiheadAttention) -> Attention:
        """The same layer, with its parameters."""
        ours = cls.__new__(cls)
        ours.__dict__ = {**layer.__dict__, "_modules": {**layer._modules, "drop": Dropout(layer.dropout)}}
        return ours

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """In eval mode torch's own; `is_causal` is a hint, which comes with the mask."""
        if not self.training:
            masks = key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            return super().forward(query, key, value, *masks)
        first = self.batch_first or query.dim() == 2
        q, k, v = (self._heads(part, first) for part in self._projected(query, key, value))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if attn_mask is not None:
            scores = scores + _added(attn_mask, scores).reshape(-1, *_per_head(attn_mask, self.num_heads))
        if key_padding_mask is not None:
            scores = scores + _added(key_padding_mask, scores).reshape(-1, 1, 1, scores.shape[-1])
        weights: Tensor = self.drop(scores.softmax(-1))  # [B, heads, L, S]
        made = self.out_proj((weights @ v).transpose(1, 2).flatten(2))  # [B, L, E]
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if query.dim() == 2:
            return made.squeeze(0), None if shown is None else shown.squeeze(0)
        return (made if first else made.transpose(0, 1)), shown

    def _projected(self, *given: Tensor) -> list[Tensor]:
        """Query, key and value behind their matrices."""
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [linear(x, weight, bias) for x, weight, bias in zip(given, weights, biases, strict=True)]

    def _heads(self, x: Tensor, first: bool) -> Tensor:
        """[B, heads, L, d], of [B, L, E], or of [L, B, E] or [L, E]."""
        x = x.unsqueeze(0) if x.dim() == 2 else x if first else x.transpose(0, 1)
        return torch.unflatten(x, -1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as what is added to scores: of booleans -inf where it holds."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -torch.inf)


def _per_head(mask: Tensor, heads: int) -> tuple[int, ...]:
    """The shape of a mask [L, S] or [B · heads, L, S] beside scores [B, heads, L, S]."""
    return (1 if mask.dim() == 2 else heads, *mask.shape[-2:])
