"""Slow, obvious versions of the methods: plain PyTorch modules and optimisers, loops over clients and samples.

Nothing here calls an engine or a method. A pool is a list with one {class: [vectors]} a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

State = dict[str, Tensor]
Sets = dict[int, list[Tensor]]
Term = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (module, features, labels) -> what is added to the mean CE


@dataclass
class Learner:
    """One client's data, as the model sees it, and how it is trained."""

    x: Tensor
    y: Tensor
    lr: float
    momentum: float
    weight_decay: float
    seen: list[list[tuple[Tensor, int]]] = field(default_factory=list)  # (feature, label) of each step, in train mode

    def train(self, module: nn.Module, batches: Sequence[Sequence[int]], term: Term | None = None) -> None:
        """SGD on CE plus a term; features are noted before the update."""
        module.train()
        optimiser = torch.optim.SGD(
            module.parameters(), lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay
        )
        self.seen = []
        for rows in batches:
            x, y = self.x[list(rows)], self.y[list(rows)]
            features, logits = module(x)
            self.seen.append([(z.detach().clone(), int(label)) for z, label in zip(features, y, strict=True)])
            loss = cross_entropy(logits, y)
            if term is not None:
                loss = loss + term(module, features, y)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    def features(self, module: nn.Module) -> Tensor:
        """All samples in eval mode."""
        module.eval()
        with torch.no_grad():
            features, _ = module(self.x)
        return features  # type: ignore[no-any-return]


def weighted_mean(states: Sequence[State], importance: Sequence[float]) -> State:
    """Σ_k (n_k / n) w_k of what is floating-point; the rest is the first client's."""
    total = sum(importance)
    result: State = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            result[name] = torch.zeros_like(first)
            for state, n in zip(states, importance, strict=True):
                result[name] += n / total * state[name]
        else:
            result[name] = first.clone()
    return result


def proximal(received: State, mu: float) -> Term:
    """(μ/2) Σ |w − w_t|², parameter by parameter."""

    def term(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        del features, labels
        total = torch.zeros((), dtype=torch.float64)
        for name, weight in module.named_parameters():
            total = total + ((weight - received[name]) ** 2).sum()
        return mu / 2 * total

    return term


def class_means(pairs: Sequence[tuple[Tensor, int]]) -> Sets:
    """The mean of each class's features."""
    sums: dict[int, Tensor] = {}
    numbers: dict[int, int] = {}
    for z, label in pairs:
        sums[label] = sums.get(label, torch.zeros_like(z)) + z
        numbers[label] = numbers.get(label, 0) + 1
    return {label: [total / numbers[label]] for label, total in sums.items()}


def mean_over_clients(clients: Sequence[Sets]) -> dict[int, Tensor]:
    """FedProto's public code: the plain mean over the clients that hold the class."""
    found: dict[int, list[Tensor]] = {}
    for client in clients:
        for label, (mean,) in client.items():
            found.setdefault(label, []).append(mean)
    return {label: torch.stack(means).mean(0) for label, means in found.items()}


def pull(prototypes: dict[int, Tensor], lam: float) -> Term:
    """FedProto: λ · the mean over samples of the mean squared difference to the own class's prototype."""

    def term(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        del module
        total = torch.zeros((), dtype=torch.float64)
        for z, label in zip(features, labels.tolist(), strict=True):
            if label in prototypes:
                total = total + ((z - prototypes[label]) ** 2).mean()
        return lam * total / len(labels)

    return term


def pad(pool: Sequence[Sets], k: int) -> list[Sets]:
    """MP-FedCL Eq. 10: a client with fewer than k prototypes of a class gets k copies of the mean of all uploaded."""
    padded: list[Sets] = [{} for _ in pool]
    for label in sorted({label for client in pool for label in client}):
        uploaded = [u for client in pool for u in client.get(label, [])]
        mean = torch.stack(uploaded).mean(0)
        for client, target in zip(pool, padded, strict=True):
            own = client.get(label, [])
            target[label] = list(own) if len(own) == k else [mean] * k
    return padded


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a·b / (|a| |b|)."""
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())


def slot_contrast(padded: Sequence[Sets], k: int, temperature: float) -> Term:
    """MP-FedCL Eq. 11: a cross-entropy over classes for each client's slot, averaged over slots and samples."""

    def term(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        del module
        total = torch.zeros((), dtype=torch.float64)
        for z, label in zip(features, labels.tolist(), strict=True):
            if label not in padded[0]:  # padding gives every client every class that anyone has
                continue
            for client in padded:
                for slot in range(k):
                    scores = {c: cosine(z, vectors[slot]) / temperature for c, vectors in client.items()}
                    everyone = torch.logsumexp(torch.stack(list(scores.values())), 0)
                    total = total + (everyone - scores[label]) / (len(padded) * k)
        return total / len(labels)

    return term


def pooled_contrast(pool: Sequence[Sets], temperature: float) -> Term:
    """DP-FedCL: each prototype of the own class against the whole pool."""

    def term(module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        del module
        total = torch.zeros((), dtype=torch.float64)
        for z, label in zip(features, labels.tolist(), strict=True):
            scores = [
                (c, cosine(z, u) / temperature) for client in pool for c, vectors in client.items() for u in vectors
            ]
            everyone = torch.logsumexp(torch.stack([score for _, score in scores]), 0)
            positives = [score for c, score in scores if c == label]
            if positives:
                total = total + sum(everyone - score for score in positives) / len(positives)
        return total / len(labels)

    return term
