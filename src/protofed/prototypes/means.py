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
    """One prototype a class, the mean of its samples (FedProto Eq. 3): [..., n, D] becomes [..., C, 1, D].

    A row labelled −1 is padding and is ignored.
    """
    member = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    means, counts = group_means(features, member)
    return Prototypes(means.unsqueeze(-2), counts.unsqueeze(-1))
