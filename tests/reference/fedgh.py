"""A slow, obvious FedGH server: torch's linear layer, its SGD and autograd, one batch after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def class_means(features: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """The mean of each class's features."""
    found: dict[int, list[Tensor]] = {}
    for z, label in zip(features, labels.tolist(), strict=True):
        if label >= 0:
            found.setdefault(label, []).append(z)
    return {label: torch.stack(some).sum(0) / len(some) for label, some in sorted(found.items())}


def train(
    weight: Tensor, bias: Tensor, clients: Iterable[Mapping[int, Tensor]], batches: Sequence[Sequence[int]], lr: float
) -> tuple[Tensor, Tensor]:
    """The head after a step for each batch of class means; those are numbered client by client, class by class."""
    pairs = [(mean, label) for means in clients for label, mean in sorted(means.items())]
    head = nn.Linear(weight.shape[1], len(weight)).to(weight.dtype)
    head.load_state_dict({"weight": weight, "bias": bias})
    optimiser = torch.optim.SGD(head.parameters(), lr=lr)
    for batch in batches if pairs else []:
        x = torch.stack([pairs[place][0] for place in batch])
        loss = cross_entropy(head(x), torch.tensor([pairs[place][1] for place in batch]))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return head.weight.detach(), head.bias.detach()
