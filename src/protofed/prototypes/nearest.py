"""The nearest-prototype rule."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.prototypes.type import Prototypes


def nearest_class(features: Tensor, prototypes: Prototypes, allowed: Tensor | None = None) -> Tensor:
    """Classify each feature by its nearest prototype: argmin_c min_k |z − u_{c,k}| (FedProto Eq. 4, MP-FedCL Eq. 13).

    Args:
        features: [..., B, D].
        prototypes: vectors [C, M, D], shared, or [..., C, M, D], with their counts.
        allowed: which classes may be chosen [..., C], bool; all unless given.

    Returns:
        Class numbers [..., B]; −1 where there is no class to choose.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, nearest_class
        >>> vectors, counts = torch.tensor([[[0.0], [9.0]], [[5.0], [0.0]]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        >>> prototypes = Prototypes(vectors, counts)
        >>> nearest_class(torch.tensor([[1.0], [4.0], [8.0]]), prototypes).tolist()
        [0, 1, 0]
        >>> nearest_class(torch.tensor([[1.0]]), prototypes, allowed=torch.tensor([False, True])).tolist()
        [1]
    """
    score, usable, _ = _scored(features, prototypes, allowed)
    return torch.where(usable.any(-1).any(-1, keepdim=True), score.argmin(-1), -1)


def class_distances(features: Tensor, prototypes: Prototypes, allowed: Tensor | None = None) -> Tensor:
    """Squared distance of each feature to the nearest prototype of each class: min_k |z − u_{c,k}|².

    Args:
        features: [..., B, D].
        prototypes: vectors [C, M, D], shared, or [..., C, M, D], with their counts.
        allowed: which classes may be chosen [..., C], bool; all unless given.

    Returns:
        [..., B, C]; infinite for a class without prototypes, or that may not be chosen.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, class_distances
        >>> vectors, counts = torch.tensor([[[0.0], [9.0]], [[5.0], [0.0]]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        >>> class_distances(torch.tensor([[1.0], [8.0]]), Prototypes(vectors, counts)).round().tolist()
        [[1.0, 16.0], [1.0, 9.0]]
    """
    score, _, middle = _scored(features, prototypes, allowed)
    return score + (features - middle).square().sum(-1, keepdim=True)


def _scored(features: Tensor, prototypes: Prototypes, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """By class |u|² − 2 z·u of the nearest prototype, which prototypes are usable, and where they are seen from."""
    usable = prototypes.filled if allowed is None else prototypes.filled & allowed.unsqueeze(-1)
    # argmin |z − u|² = argmin |u|² − 2 z·u. Seen from the prototypes' middle: a common offset would cost digits.
    number = prototypes.filled.sum((-2, -1)).clamp(min=1).view(*prototypes.counts.shape[:-2], 1, 1)
    vectors = prototypes.vectors.flatten(-3, -2)
    middle = vectors.sum(-2, keepdim=True) / number
    vectors = vectors - middle
    score = vectors.square().sum(-1).unsqueeze(-2) - 2 * (features - middle) @ vectors.mT
    score = score.masked_fill(~usable.flatten(-2).unsqueeze(-2), torch.inf)
    return torch.unflatten(score, -1, prototypes.counts.shape[-2:]).amin(-1), usable, middle
