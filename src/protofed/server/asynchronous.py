"""Asynchronous rounds: the server aggregates whenever so many uploads have arrived, whenever their turns began.

"Federated Learning with Buffered Asynchronous Aggregation" (FedBuff), Nguyen et al., AISTATS 2022, arXiv 2106.06639.
What clients send of weights is a step from what they were sent; of prototypes, what replaces their earlier ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Method
from protofed.methods.server.model_distances import parameters
from protofed.randomness import generator
from protofed.trust.summation import how_summed, of_its_aggregation


def check_method(method: Method, form: Upload) -> None:
    """Refuse a method whose server does more than average weights and hold prototypes; `form` is that of an upload."""
    pooled = of_its_aggregation(type(method), "pools") and method.pools() and not method.needs_each()
    if form.sums or not (pooled or how_summed(method)):
        why = "its server does more with a round's uploads than to average weights and to hold prototypes"
        raise UserError("--method with --async", method.name, why)


def discount(staleness: int) -> float:
    """s(τ) = 1/√(1 + τ): how much an upload counts that has missed so many aggregations."""
    return float((1 + staleness) ** -0.5)


def rebased(uploads: Upload, then: Broadcast, now: Broadcast, staleness: int) -> Upload:
    """Uploads as if their turns began with what the server sends now: x + s(τ) Δ, with Δ = w − what was sent then.

    Running statistics are no sum of steps: x + s(τ) (w − x), so that variances stay above 0.

    Args:
        uploads: of clients whose turns began with the same broadcast [N, ...].
        then: that broadcast.
        now: the last one.
        staleness: τ, how many aggregations lie between; with 0 the uploads stay as they are.
    """
    if staleness == 0:
        return uploads
    share, steps = discount(staleness), parameters(uploads.weights)

    def moved(name: str, sent: Tensor) -> Tensor:
        if name not in now.weights or not sent.is_floating_point():
            return sent
        current = now.weights[name]
        return current + share * (sent - (then.weights[name] if name in steps else current))

    return replace(uploads, weights={name: moved(name, sent) for name, sent in uploads.weights.items()})


class Arrivals(NamedTuple):
    """Uploads of clients whose turns began in the same round."""

    members: Sequence[int]
    begun: int
    uploads: Upload  # [N, ...]


class Buffered(NamedTuple):
    """A round's uploads, whenever their turns began."""

    who: tuple[int, ...]  # in client order
    uploads: Upload  # of each of them, as steps from what the server sends now
    staleness: tuple[int, ...]  # of each of them


class InFlight:
    """Who is on a turn, and what was sent: a broadcast is kept until the last of its turns has ended."""

    def __init__(self) -> None:
        self.begun: dict[int, int] = {}  # by client: the round in which its turn began
        self.sent: dict[int, Broadcast] = {}  # by round

    def begin(self, members: Collection[int], number: int, broadcast: Broadcast) -> None:
        """Turns of clients in a round."""
        self.begun |= dict.fromkeys(members, number)
        self.sent[number] = broadcast
        self._forget()

    def end(self, members: Collection[int]) -> None:
        """Turns of clients, whose uploads are aggregated or lost."""
        for member in members:
            self.begun.pop(member, None)
        self._forget()

    def by_round(self, members: Collection[int]) -> dict[int, list[int]]:
        """Clients on a turn, by the round in which it began, in client order."""
        rounds = sorted({self.begun[member] for member in members})
        return {number: sorted(one for one in members if self.begun[one] == number) for number in rounds}

    def buffered(self, arrived: Sequence[Arrivals], now: Broadcast, number: int) -> Buffered:
        """What has arrived, as the uploads of a round that begins with the broadcast `now`."""
        members = [member for part in arrived for member in part.members]
        ages = [number - part.begun for part in arrived for _ in part.members]
        joined = Upload.join([rebased(p.uploads, self.sent[p.begun], now, number - p.begun) for p in arrived])
        order = sorted(range(len(members)), key=members.__getitem__)
        if order != list(range(len(members))):
            joined = joined.reorder(torch.tensor(order))
        return Buffered(tuple(members[row] for row in order), joined, tuple(ages[row] for row in order))

    def _forget(self) -> None:
        needed = {*self.begun.values()}
        self.sent = {number: broadcast for number, broadcast in self.sent.items() if number in needed}


class VirtualClock:
    """When turns end, if a client's always take as long: who comes first, and what time it is then."""

    def __init__(self, seconds: Sequence[float], seed: int) -> None:
        self.seconds, self.seed = seconds, seed
        self.now = 0.0
        self.due: dict[int, float] = {}  # by client: when its turn ends

    def begin(self, members: Collection[int]) -> None:
        """Turns of clients, now."""
        self.due |= {member: self.now + self.seconds[member] for member in members}

    def first(self, number: int, begun: Mapping[int, int]) -> list[int]:
        """The clients whose turns end first; of those that end together the older turn, and then by a draw."""
        orders = {round_of: self._draw(round_of) for round_of in {*begun.values()}}

        def place(member: int) -> tuple[float, int, int]:
            return self.due[member], begun[member], orders[begun[member]][member]

        found = sorted(self.due, key=place)[:number]
        self.now = max([self.now, *(self.due.pop(member) for member in found)])
        return sorted(found)

    def _draw(self, number: int) -> list[int]:
        """The places of clients in a queue of those whose turns began in a round."""
        return torch.randperm(len(self.seconds), generator=generator(self.seed, "arrivals", number)).tolist()
