"""A slow, obvious version of FedNTD: one sample and one class at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.plain_rounds import Moment, Term, frozen


def not_true_distillation(local: Tensor, taught: Tensor, labels: Sequence[int], tau: float) -> Tensor:
    """τ² KL(q_glob || q) over the classes that are not true, for each sample."""
    values = []
    for mine, theirs, label in zip(local, taught, labels, strict=True):
        wrong = [c for c in range(len(mine)) if c != label]
        p_sum = sum(torch.exp(theirs[c] / tau) for c in wrong)
        q_sum = sum(torch.exp(mine[c] / tau) for c in wrong)
        total = torch.zeros((), dtype=local.dtype)
        for c in wrong:
            p, q = torch.exp(theirs[c] / tau) / p_sum, torch.exp(mine[c] / tau) / q_sum
            total = total + p * torch.log(p / q)
        values.append(tau**2 * total)
    return torch.stack(values)


def fedntd_term(beta: float, tau: float) -> Term:
    """β · the mean divergence from the received model."""

    def term(moment: Moment) -> Tensor:
        taught = frozen(moment.module, moment.received)(moment.x).logits
        local = moment.module(moment.x).logits
        return beta * not_true_distillation(local, taught, moment.y.tolist(), tau).mean()

    return term
