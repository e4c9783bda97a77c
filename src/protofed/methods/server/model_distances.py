"""Models as points: which of their tensors count, and how far apart they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofed.prototypes.segments import exact_distances

STATISTICS = ("running_mean", "running_var")
"""What BatchNorm calls its buffers. A user's other buffers are constants, so they are 0 in every difference."""


def parameters(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The floating-point tensors that are no running statistics."""
    return {
        name: tensor
        for name, tensor in weights.items()
        if tensor.is_floating_point() and name.rpartition(".")[2] not in STATISTICS
    }


def flat(tensor: Tensor) -> Tensor:
    """[N, ...] as float64 rows [N, p]."""
    return tensor.to(torch.float64).reshape(len(tensor), tensor.shape[1:].numel())


def as_vectors(tensors: Mapping[str, Tensor]) -> Tensor:
    """Tensors [N, ...] by name, one after the other in the order of their names: [N, p]."""
    return torch.cat([tensors[name].unsqueeze(-1).flatten(1) for name in sorted(tensors)], 1)


def from_vector(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one client, of the names, shapes and types of `like`, that `as_vectors` put into [p]."""
    parts = torch.split(vector, [like[name].numel() for name in sorted(like)])
    return {name: part.view_as(like[name]).to(like[name]) for name, part in zip(sorted(like), parts, strict=True)}


def squared_distances(weights: Mapping[str, Tensor], centres: Mapping[str, Tensor]) -> Tensor:
    """|w_i − W_k|², [N, K], between N models and K others, in float64 and tensor by tensor to save memory."""
    parts = [
        exact_distances(flat(tensor), flat(centres[name])).square() for name, tensor in parameters(weights).items()
    ]
    return torch.stack(parts).sum(0)
