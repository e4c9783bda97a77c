"""Clients whose data changes while they train: from one split of a dataset to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protofed.data.federation import Client, Federation
from protofed.data.samples import joined
from protofed.randomness import generator


@dataclass(frozen=True, eq=False)
class Drift:
    """What clients hold at first, and what in the end; both are divided from the same data."""

    before: Federation
    after: Federation
    shares: Sequence[float]  # for each round, how much of what a client holds is of its later data
    seed: int

    @property
    def landmarks(self) -> dict[str, int]:
        """The rounds, counted from 0, that say what it did: the last before, the first or the middle one, the last."""
        first = next(round for round, share in enumerate(self.shares) if share > 0)
        middle = next(round for round, share in enumerate(self.shares) if share >= 0.5)
        return {"before": first - 1, "at": middle, "after": len(self.shares) - 1}

    def at(self, round: int) -> Federation:
        """What clients hold in a round, counted from 0."""
        share = self.shares[min(round, len(self.shares) - 1)]
        if share in (0, 1):
            return self.after if share else self.before
        pairs = zip(self.before.clients, self.after.clients, strict=True)
        mixed = tuple(_mixed(k, old, new, share, self.seed) for k, (old, new) in enumerate(pairs))
        return replace(self.before, clients=mixed)


def sudden(rounds: int, first: int) -> list[float]:
    """Everything changes in round `first`, counted from 1."""
    return [float(round + 1 >= first) for round in range(rounds)]


def gradual(rounds: int) -> list[float]:
    """Evenly from the first round to the last."""
    return [round / max(rounds - 1, 1) for round in range(rounds)]


def _mixed(k: int, old: Client, new: Client, share: float, seed: int) -> Client:
    """A share of the new data and the rest of the old; always the same samples leave first, and come first."""
    parts = [(old, 1 - share, "old"), (new, share, "new")]
    train = [client.train.take(_some(len(client.train), part, seed, "train", age, k)) for client, part, age in parts]
    own = [client.own[_some(len(client.own), part, seed, "own", age, k)] for client, part, age in parts]
    return replace(old, train=joined(train), own=_united(own))


def _some(size: int, part: float, *address: int | str) -> Tensor:
    order = torch.randperm(size, generator=generator(*address))
    return order[: max(1, round(part * size))].sort().values


def _united(rows: Sequence[Tensor]) -> Tensor:
    return torch.tensor(sorted({row for part in rows for row in part.tolist()}))
