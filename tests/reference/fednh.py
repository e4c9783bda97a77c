"""A slow, obvious version of FedNH: lists and loops over clients and classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """A vector of length 1; zeros stay zeros."""
    length = float((x * x).sum()) ** 0.5
    return x / length if length > 0 else x


def cosine_logits(z: Tensor, prototypes: Tensor, scale: float) -> Tensor:
    """For each class s · cos(z, W_c)."""
    return torch.stack([scale * (unit(z) * row).sum() for row in prototypes])


def class_directions(pairs: Sequence[tuple[Tensor, int]]) -> dict[int, tuple[Tensor, int]]:
    """FedNH's μ_c with n_c: the direction of the mean of a class's directions."""
    found: dict[int, list[Tensor]] = {}
    for z, label in pairs:
        found.setdefault(label, []).append(unit(z))
    return {label: (unit(torch.stack(zs).sum(0) / len(zs)), len(zs)) for label, zs in found.items()}


def move(prototypes: Tensor, clients: Sequence[dict[int, tuple[Tensor, int]]], rho: float) -> Tensor:
    """FedNH's server: W_c ← unit(ρ W_c + (1−ρ) m_c)."""
    moved = prototypes.clone()
    for c, row in enumerate(prototypes):
        held = [client[c] for client in clients if c in client]
        if held:
            total = sum((n * mu for mu, n in held), torch.zeros_like(row)) / sum(n for _, n in held)
            moved[c] = unit(rho * row + (1 - rho) * unit(total))
    return moved
