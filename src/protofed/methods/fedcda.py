"""FedCDA: average each client's model of the recent round in which the clients agree.  Wang et al., ICLR 2024.

No public code was found; three independent ports agree on the numbers below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server, Trained, Turn, param, weighted_mean
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.client_tables import with_rows
from protofed.methods.server.cross_round import Cache, select
from protofed.randomness import generator

COMBINATIONS = 100_000  # as many are tried at once


@dataclass(frozen=True)
class FedCDA(FedAvg):
    """The mean of all clients' models, each from that of its last K turns which makes losses and variance least."""

    name: ClassVar[str] = "fedcda"
    paper: ClassVar[str] = "Wang et al., ICLR 2024"
    link: ClassVar[str] = "https://openreview.net/forum?id=nbPGqeH3lt"
    up: ClassVar[str] = "weights, training loss"
    down: ClassVar[str] = "weights"
    score: ClassVar[str] = "global/all/head"

    k: int = param(3, "K: models kept per client", at_least=1)
    groups: int = param(3, "B: participants are searched in so many groups", at_least=1)
    smoothness: float = param(1.0, "L: weight of the variance", at_least=0)
    warmup: int = param(
        -1, "rounds of FedAvg at the start, 50 of 200 in the paper; -1: a fifth of the rounds, at most 50", at_least=-1
    )

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """w_k and F_k, the mean training loss of the last local epoch."""
        sent = super().upload(trained, turn)
        assert trained.losses is not None  # engines always fill it in
        return Upload(sent.weights, sent.prototypes, {**sent.numbers, "loss": trained.losses})

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """Algorithm 1: the plain mean of the selected models of all clients seen so far."""
        previous, clock = server.previous, server.clock
        average = super().aggregate(uploads, server).weights
        loss = uploads.numbers["loss"]
        who = torch.tensor(clock.who, device=loss.device)
        draws = generator(clock.seed, "fedcda", clock.round)
        groups = torch.randperm(len(who), generator=draws).tensor_split(self.groups)
        combinations = self.k ** max(len(group) for group in groups)
        if combinations > COMBINATIONS:
            why = f"with k={self.k} and {len(who)} participants a group has {combinations:,} combinations of models"
            raise UserError(
                "--set groups", self.groups, f"{why}, over {COMBINATIONS:,}", hint="take more groups, or a smaller k"
            )

        empty = Cache.empty(uploads.weights, loss, clock.clients, self.k)
        cache = (Cache.unpack(previous.kept) if previous.kept else empty).add(who, uploads.weights, loss)
        if clock.round < (min(50, clock.rounds // 5) if self.warmup < 0 else self.warmup):
            return Broadcast(average, kept=cache.pack())
        cache = select(cache, who, [group for group in groups if len(group)], self.smoothness, average)
        return _mean(average, cache)  # what is no parameter, such as BatchNorm's statistics, is this round's average

    def with_room(self, broadcast: Broadcast, clients: int) -> Broadcast:
        """Of a new client no model is held."""
        return replace(broadcast, kept={name: with_rows(one, clients) for name, one in broadcast.kept.items()})

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast:  # noqa: ARG002
        """The mean without the client's models."""
        kept = {name: table.index_fill(0, torch.tensor(client), 0) for name, table in broadcast.kept.items()}
        return _mean(broadcast.weights, Cache.unpack(kept))


def _mean(weights: Mapping[str, Tensor], cache: Cache) -> Broadcast:
    """The selected models of all clients seen so far."""
    seen = (cache.turns > 0).nonzero().squeeze(1)
    return Broadcast({**weights, **weighted_mean(cache.selected(seen), torch.ones_like(seen))}, kept=cache.pack())
