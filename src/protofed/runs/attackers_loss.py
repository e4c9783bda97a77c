"""What attackers of an experiment can compute of a model: its loss on their own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protofed.engines.base import Engine
from protofed.trust.attacker import Loss


def attackers_loss(engine: Engine, who: Sequence[int]) -> Loss | None:
    """The mean cross-entropy of a model's head over the training samples of the clients in `who`.

    Args:
        engine: of the run.
        who: the attackers; of those whose models are not of the first kind nothing is asked.

    Returns:
        A function of weights without a client axis, to be differentiated; None if nobody is asked.
    """
    group = engine.groups[0]
    parts = []
    for row, member in enumerate(group.members):
        if member in who:
            train = engine.federation.members[member].train
            parts.append((group.inputs(train.x, row), train.labels.to(group.device)))
    if not parts:
        return None

    def loss(weights: Mapping[str, Tensor]) -> Tensor:
        net = engine.net(group, {**group.own.initial, **weights})
        sums = [cross_entropy(net(x, train=False).logits.float(), labels, reduction="sum") for x, labels in parts]
        return torch.stack(sums).sum() / sum(len(labels) for _, labels in parts)

    return loss
