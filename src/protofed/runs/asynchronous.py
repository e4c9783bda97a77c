"""Clients in this process that train as fast as each can: asynchronous rounds on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protofed.engines.base import Engine, Outcome
from protofed.messages import Broadcast, Traffic
from protofed.methods.base import Clock
from protofed.runs.clients import LocalClients
from protofed.server.asynchronous import Arrivals, InFlight, VirtualClock


class AsynchronousClients(LocalClients):
    """A client trains when its turn ends on the virtual clock, from what it was sent when the turn began.

    Who has sent an upload waits for the next broadcast, so that nobody is twice among those that are aggregated.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        experiment = engine.experiment
        assert experiment.async_ is not None  # or the clients are others
        self.number = experiment.async_
        self.turns = InFlight()
        self.clock = VirtualClock(experiment.turn_seconds(engine.federation.total), experiment.seed)

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """Until so many uploads have arrived; whoever is free begins a turn at once."""
        free = [member for member in who if member not in self.turns.begun]
        self.turns.begin(free, clock.round, broadcast)
        self.clock.begin(free)
        first = self.clock.first(self.number, self.turns.begun)
        arrived, losses, traffic = [], dict[int, float](), Traffic()
        for number, members in self.turns.by_round(first).items():
            began = clock._replace(round=number, who=tuple(members))
            outcome = self.engine.round(members, self.turns.sent[number], began)
            arrived.append(Arrivals(members, number, outcome.uploads))
            losses |= dict(zip(members, outcome.losses, strict=True))
            traffic += outcome.traffic
        buffered = self.turns.buffered(arrived, broadcast, clock.round)
        self.turns.end(first)
        told = [losses[member] for member in buffered.who]
        return Outcome(buffered.who, buffered.uploads, told, {}, traffic, self.clock.now, buffered.staleness)

    def state(self) -> dict[str, Tensor]:
        """Whose turns go on, since when and until when, and what was sent."""
        begun = sorted(self.turns.begun.items())
        found = {
            "begun": torch.tensor(begun, dtype=torch.int64).view(-1, 2),
            "due": torch.tensor([self.clock.due[member] for member, _ in begun], dtype=torch.float64),
            "now": torch.tensor(self.clock.now, dtype=torch.float64),
        }
        for number, broadcast in self.turns.sent.items():
            found |= {f"sent/{number}/{name}": tensor for name, tensor in broadcast.flat().items()}
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """The same turns go on."""
        begun = dict(state["begun"].tolist())
        sent: dict[int, dict[str, Tensor]] = {number: {} for number in begun.values()}
        for path, tensor in state.items():
            if path.startswith("sent/"):
                _, number, name = path.split("/", 2)
                sent[int(number)][name] = tensor
        self.turns.begun = begun
        self.turns.sent = {number: Broadcast.from_flat(flat) for number, flat in sent.items()}
        self.clock.due = dict(zip(begun, state["due"].tolist(), strict=True))
        self.clock.now = float(state["now"])
