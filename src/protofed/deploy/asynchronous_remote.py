"""Clients elsewhere that are not waited for: a round is over when so many have answered (server/asynchronous.py)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from protofed.deploy.connections import LOG, Connections
from protofed.deploy.exchange import Inbox, pause_after
from protofed.deploy.remote import TRIES, Remote, TrainReply
from protofed.deploy.wire import Packet
from protofed.engines.base import Outcome
from protofed.errors import LostError
from protofed.evaluation.accuracy import Evaluation
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock
from protofed.runs.setup import Setup
from protofed.server.asynchronous import Arrivals, InFlight
from protofed.trust.screening import Schema

AGAIN = 10.0
"""Seconds between two looks for clients within a round: who is new there is asked who it is, and waited for."""


class AsynchronousRemote(Remote):
    """A client is asked for a turn as soon as it is free; its answer counts in the round in which it arrives."""

    def __init__(self, setup: Setup, clients: Connections, schema: Schema) -> None:
        super().__init__(setup, clients, schema)
        assert setup.experiment.async_ is not None  # or the clients are others
        self.number = setup.experiment.async_
        self.turns = InFlight()
        self.arrived: dict[int, TrainReply] = {}  # in the order of arrival
        self.inbox = Inbox(clients.grid, self.settings.deadline, self._read_turn)
        self.asked: dict[int, int] = {}  # the client of each node that was asked

    @property
    def tests_late(self) -> bool:
        """A turn that goes on while others begin is none that a test could travel with."""
        return False

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """Until so many have answered, or nobody who is connected still might; then there must be the minimum."""
        self._traffic, self.clock = Traffic(), clock
        needed = min(self.settings.minimum, self.number)
        for _ in range(TRIES):
            failed = self._await(who, broadcast)
            if len(self.arrived) >= needed:
                break
            LOG.warning("round %d goes on: fewer than %d answered", clock.round + 1, needed)
            if len(self.clients.wait(needed, self.settings.wait, who)) < needed:
                raise LostError(f"fewer than {needed} of the clients are left")
        else:
            raise LostError(f"round {clock.round + 1} failed {TRIES} times: fewer than {needed} answered")
        replies = {member: self.arrived.pop(member) for member in list(self.arrived)[: self.number]}
        parts = [
            Arrivals(members, begun, Upload.gather([replies[member].upload for member in members]))
            for begun, members in self.turns.by_round(replies).items()
        ]
        buffered = self.turns.buffered(parts, broadcast, clock.round)
        self.turns.end(replies)
        losses = [replies[member].loss for member in buffered.who]
        absent = self.clients.absent([member for member in who if member not in self.turns.begun.keys() | replies])
        left_out = self._told(absent | failed)
        return Outcome(buffered.who, buffered.uploads, losses, left_out, self._traffic, staleness=buffered.staleness)

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """What clients that are free say of their models; in the end, all. Until then nobody need answer."""
        self._traffic = Traffic()
        there = self.clients.connected()
        if self.clock.round + 1 == self.clock.rounds:
            return self._tested(there, broadcast)
        try:
            return self._tested([member for member in there if member not in self.turns.begun], broadcast)
        except LostError:
            return Evaluation({}, {}, traffic=self._traffic)

    def _await(self, who: Sequence[int], broadcast: Broadcast) -> dict[int, str]:
        """Ask whoever is free, and look for answers; who has failed meanwhile, and why."""
        began = looked = time.monotonic()
        there, failed = self.clients.connected(), dict[int, str]()
        while True:
            if time.monotonic() > looked + AGAIN:
                looked, there = time.monotonic(), self.clients.connected()
            self._begin([m for m in who if m in there and m not in self.turns.begun.keys() | failed], broadcast)
            found = self.inbox.look()
            self._traffic += found.traffic
            self.arrived |= {self.asked[node]: reply for node, reply in found.given.items()}
            failed |= {self.asked[node]: why for node, why in found.left_out.items()}
            self.turns.end([self.asked[node] for node in found.left_out])
            awaited = {self.asked[about.node] for about in self.inbox.awaited.values()}
            if len(self.arrived) >= self.number or awaited.isdisjoint(there):
                return failed
            time.sleep(pause_after(time.monotonic() - began))

    def _begin(self, members: Sequence[int], broadcast: Broadcast) -> None:
        """Ask clients for a turn."""
        if members:
            self.turns.begin(members, self.clock.round, broadcast)
            self.asked |= {self.clients.known[member].node: member for member in members}
            questions = self._questions(dict.fromkeys(members, "train"), broadcast, lambda _: {})
            self.inbox.ask(questions, str(self.clock.round + 1))

    def _read_turn(self, node: int, packet: Packet) -> TrainReply:
        return self._checked(self.asked[node], packet, self._read_upload)
