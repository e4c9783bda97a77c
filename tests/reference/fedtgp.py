"""A slow, obvious FedTGP server: torch's modules, its SGD and autograd, loops over prototypes and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Pairs = Sequence[tuple[Tensor, int]]


class TrainablePrototypes(nn.Module):
    """A vector for each class, through two dense layers."""

    def __init__(self, layers: Mapping[str, Tensor]) -> None:
        super().__init__()
        classes, size = layers["embedding"].shape
        self.embedding = nn.Embedding(classes, size).double()
        self.hidden, self.out = nn.Linear(size, size).double(), nn.Linear(size, size).double()
        renamed = {"embedding": "embedding.weight"}
        self.load_state_dict({renamed.get(name, name): value for name, value in layers.items()})

    def forward(self, c: int) -> Tensor:
        made: Tensor = self.out(torch.relu(self.hidden(self.embedding(torch.tensor(c)))))
        return made


def distance(a: Tensor, b: Tensor) -> Tensor:
    """The Euclidean distance."""
    return ((a - b) ** 2).sum().sqrt()


def margin(pairs: Pairs, which: str, threshold: float) -> float:
    """From the plain mean of each class's prototypes."""
    found: dict[int, list[Tensor]] = {}
    for z, c in pairs:
        found.setdefault(c, []).append(z)
    means = {c: torch.stack(some).mean(0) for c, some in found.items()}
    if len(means) < 2:
        return threshold
    apart = {c: [float(distance(m, o)) for other, o in means.items() if other != c] for c, m in means.items()}
    largest = max(min(some) if which == "nearest" else max(some) for some in apart.values())
    return min(largest, threshold)


def train(
    layers: Mapping[str, Tensor], pairs: Pairs, batches: Sequence[Sequence[int]], delta: float, lr: float
) -> Tensor:
    """The prototypes [C, D] after a step for each batch."""
    model, classes = TrainablePrototypes(layers), len(layers["embedding"])
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for batch in batches:
        lost = []
        for place in batch:
            z, label = pairs[place]
            scores = [-distance(z, model(c)) - (delta if c == label else 0.0) for c in range(classes)]
            lost.append(torch.logsumexp(torch.stack(scores), 0) - scores[label])
        optimiser.zero_grad()
        torch.stack(lost).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        return torch.stack([model(c) for c in range(classes)])
