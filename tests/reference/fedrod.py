"""FedRoD's losses, sample by sample and class by class."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.reference.plain_rounds import Moment, Term


def balanced(logits: Tensor, labels: Sequence[int], counts: Sequence[int], gamma: float) -> Tensor:
    """−log of n_y^γ e^{z_y} in the sum over classes; 0^0 = 1."""
    losses = []
    for row, y in zip(logits, labels, strict=True):
        total = torch.zeros((), dtype=row.dtype)
        for c, n in enumerate(counts):
            total = total + n**gamma * torch.exp(row[c])
        losses.append(-torch.log(counts[y] ** gamma * torch.exp(row[y]) / total))
    return torch.stack(losses)


def private(generic: Tensor, own: Tensor, labels: Sequence[int]) -> Tensor:
    """−log softmax of the sum of both heads' logits, of which the generic ones are numbers."""
    losses = []
    for row, mine, y in zip(generic, own, labels, strict=True):
        scores = torch.tensor(row.tolist(), dtype=row.dtype) + mine
        losses.append(-torch.log(torch.exp(scores[y]) / torch.exp(scores).sum()))
    return torch.stack(losses)


def fedrod_term(gamma: float) -> Term:
    """What is added to the mean cross-entropy; the private head sees features as numbers."""

    def term(moment: Moment) -> Tensor:
        out, labels = moment.module(moment.x), moment.y.tolist()
        head = moment.module.get_submodule("private_head")
        mine = head(torch.tensor(out.features.tolist(), dtype=out.features.dtype))
        counts = moment.data.counts(out.logits.shape[1])
        generic = balanced(out.logits, labels, counts, gamma).mean() - cross_entropy(out.logits, moment.y)
        return generic + private(out.logits, mine, labels).mean()

    return term
