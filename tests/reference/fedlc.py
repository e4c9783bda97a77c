"""FedLC's loss, sample by sample and class by class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.plain_rounds import Moment, Term


def calibrated(logits: Tensor, labels: Sequence[int], counts: Sequence[int], tau: float, own: bool = True) -> Tensor:
    """−log of a ratio over the classes that the client has, or all if τ = 0; without the `own` class as printed."""
    losses = []
    for row, y in zip(logits, labels, strict=True):
        scores = {}
        for c, n in enumerate(counts):
            if tau == 0:
                scores[c] = row[c]
            elif n > 0:
                scores[c] = row[c] - tau / math.sqrt(math.sqrt(n))
        total = torch.zeros((), dtype=row.dtype)
        for c, score in scores.items():
            if own or c != y:
                total = total + torch.exp(score)
        losses.append(torch.log(total) - scores[y])
    return torch.stack(losses)


def fedlc_term(tau: float) -> Term:
    """What is added to the mean cross-entropy."""

    def term(moment: Moment) -> Tensor:
        logits = moment.module(moment.x).logits
        counts = moment.data.counts(logits.shape[1])
        plain = torch.nn.functional.cross_entropy(logits, moment.y)
        return calibrated(logits, moment.y.tolist(), counts, tau).mean() - plain

    return term
