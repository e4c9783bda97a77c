"""Means of groups of rows: the class mean, and the centroid of a cluster."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.prototypes.type import Prototypes


def group_means(values: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each group's rows, [..., G, D], and their number, [..., G]; zeros for an empty group.

    `values` is [..., n, D]; `member` [..., n, G] says which rows belong to which group, or with what weight.
    """
    weight = member.to(values.dtype)
    counts = weight.sum(-2)
    # A matrix product and no scatter: deterministic on a GPU, and it maps over clients.
    return weight.mT @ values / counts.clamp(min=torch.finfo(counts.dtype).tiny).unsqueeze(-1), counts


def class_means(features: Tensor, labels: Tensor, classes: int) -> Prototypes:
    """Average the samples of each class (FedProto Eq. 3).

    Args:
        features: the samples [..., n, D]; leading axes are clients.
        labels: their classes [..., n]; a row labelled −1 is padding.
        classes: the number of classes, C.

    Returns:
        One prototype per class, vectors [..., C, 1, D] and counts [..., C, 1]; an empty slot for a class without
        samples.

    Example:
        >>> import torch
        >>> from protofed.prototypes import class_means
        >>> means = class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, -1]), 2)
        >>> means.vectors.tolist(), means.counts.tolist()
        ([[[1.0]], [[0.0]]], [[2.0], [0.0]])
    """
    member = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    means, counts = group_means(features, member)
    return Prototypes(means.unsqueeze(-2), counts.unsqueeze(-1))
