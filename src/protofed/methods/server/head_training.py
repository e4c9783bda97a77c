"""A linear head that the server trains by itself (FedGH, CCVR): plain SGD on the cross-entropy of given features."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from protofed.models.linear_head import BIAS, WEIGHT


def train_head(
    head: Mapping[str, Tensor],
    features: Tensor,
    labels: Tensor,
    *,
    lr: float,
    epochs: int,
    batch: int,
    draws: torch.Generator,
) -> dict[str, Tensor]:
    """The head after some epochs on features [P, D] with labels [P], in an order that is drawn for each epoch.

    The gradient is written out: with batches of one, autograd would take most of the time.
    """
    weight, bias = head[WEIGHT].clone(), head[BIAS].clone() if BIAS in head else head[WEIGHT].new_zeros(())
    targets = one_hot(labels, len(weight)).to(weight.dtype)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(labels), generator=draws), batch):
            x, y = features[rows].to(weight), targets[rows]
            slope = ((x @ weight.T + bias).softmax(-1) - y) / len(rows)
            weight -= lr * slope.T @ x
            if BIAS in head:
                bias -= lr * slope.sum(0)
    return {WEIGHT: weight, BIAS: bias} if BIAS in head else {WEIGHT: weight}
