"""A slow, obvious version of FedRCL: one pair of samples at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.plain_rounds import Moment, Term, cosine


def number(value: Tensor) -> float:
    """Its value, without its history."""
    return float(value.detach())


def relaxed_contrast(
    maps: Tensor, labels: Sequence[int], tau: float, threshold: float, pairs: str, negatives: int = 2
) -> tuple[Tensor, Tensor]:
    """FedRCL on one level: contrast and penalty of each sample."""
    pooled = [sample.reshape(sample.shape[0], -1).mean(1) for sample in maps]
    contrasts, penalties = [], []
    zero = torch.zeros((), dtype=maps.dtype)
    for i, label in enumerate(labels):
        kin = [cosine(pooled[i], pooled[j]) for j, other in enumerate(labels) if other == label and j != i]
        others = [cosine(pooled[i], pooled[j]) for j, other in enumerate(labels) if other != label]
        too_close = [s for s in kin if number(s) >= threshold]
        if pairs == "hardest":
            least = min(kin, key=number) if kin else zero + 1
            too_close = [least] if kin and number(least) >= threshold else []
            kin = [least]
            others = sorted(others, key=number)[-negatives:]
        against = sum((torch.exp(s / tau) for s in others), zero)
        pulls = [-torch.log(torch.exp(s / tau) / (torch.exp(s / tau) + against)) for s in kin]
        contrasts.append(sum(pulls, zero) / len(pulls) if pulls else zero)
        itself = torch.exp(zero + 1 / tau)
        penalties.append(-torch.log(itself / (itself + sum((torch.exp(s / tau) for s in too_close), zero))))
    return torch.stack(contrasts), torch.stack(penalties)


def fedrcl_term(tau: float, threshold: float, pairs: str) -> Term:
    """The mean over levels and samples of contrast and penalty."""

    def term(moment: Moment) -> Tensor:
        blocks = moment.module(moment.x).blocks
        levels = [relaxed_contrast(block, moment.y.tolist(), tau, threshold, pairs) for block in blocks]
        return torch.stack([(contrast + penalty).mean() for contrast, penalty in levels]).mean()

    return term
