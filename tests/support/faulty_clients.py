"""Flower's grid in one process, on a clock of its own, with faults drawn from a seed.

Time passes only where the server sleeps. A client that is killed remembers what is in its folder, and nothing else; the
server goes on taking it for present for a while, as Flower's does. Answers come late, twice, again in later rounds, and
with bytes changed; so do questions.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, Metadata, RecordDict
from flwr.common.constant import ErrorCode

from protofed.deploy import client, connections, exchange, flower_client
from protofed.deploy.records import as_record, from_records
from tests.support.loopback import Loopback

DEADLINE, WAIT = 30.0, 120.0
MARGIN = 2.0
"""Seconds by which an answer is clearly in time, or late."""


@dataclass(frozen=True)
class Odds:
    """How likely each fault is for one question."""

    slow: float = 0.0  # the answer takes long, but is in time
    repeated: float = 0.0  # answered again: at once, or in a later round
    asked_twice: float = 0.0  # the client hears the question twice, and answers twice
    late: float = 0.0  # the answer comes after the deadline
    damaged: float = 0.0  # bytes of the question or of the answer are changed
    crashed: float = 0.0  # the client's app dies; the next one starts at once
    killed: float = 0.0  # the client dies, and comes back later


class KilledError(BaseException):
    """Of a client, or of the server; nobody catches it."""


class Asked(NamedTuple):
    """Who was taken for present when a round's last question was asked, and what became of those that failed."""

    listed: tuple[int, ...]
    failed: dict[int, str]


class Faulty(Loopback):
    """Clients of which `away` says until when they are dead, and `missed` from when on the server knows."""

    def __init__(self, nodes: dict[int, dict[str, Any]], odds: Odds, seed: int = 0, repaired: bool = False) -> None:
        """With `repaired`, a round that is played a third time is played without faults."""
        super().__init__(nodes)
        self.nodes, self.odds, self.repaired, self.draws = nodes, odds, repaired, random.Random(seed)
        self.now, self.number = 0.0, 0
        self.listed: list[int] = []
        self.away: dict[int, float] = {}
        self.missed: dict[int, float] = {}
        self.coming: list[tuple[float, Message]] = []
        self.earlier: deque[Message] = deque(maxlen=20)
        self.rounds: dict[tuple[str, int], Asked] = {}
        self.counts: dict[str, int] = {}
        self.tries = (("", ""), 0)
        self.each: Callable[[str, int], None] = lambda _kind, _round: None  # told when clients have been asked

    def use(self, patch: pytest.MonkeyPatch) -> None:
        """Let the server live on this clock."""
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._pass)
        for module in (exchange, connections):
            patch.setattr(module, "time", clock)

    def _pass(self, seconds: float) -> None:
        self.now += seconds

    def get_node_ids(self) -> list[int]:
        """Those that live, and those whose death is not known yet."""
        for node in [node for node, back in self.away.items() if back <= self.now]:
            del self.away[node], self.missed[node]
        self.listed = [node for node in self.nodes if node not in self.away or self.now < self.missed[node]]
        return self.listed

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Ask the clients; what comes of it is known here, and comes later."""
        messages = list(messages)
        kind, group = messages[0].metadata.message_type, messages[0].metadata.group_id
        self.tries = ((kind, group), self.tries[1] + 1 if self.tries[0] == (kind, group) else 1)
        numbers, failed = [], {}
        for message in messages:
            self.number += 1
            about = message.metadata
            named = Metadata(
                1, str(self.number), 1, about.dst_node_id, "", group, about.created_at, about.ttl, about.message_type
            )
            asked = Message(content=message.content, metadata=named)  # type: ignore[call-overload]  # as Flower does
            numbers.append(str(self.number))
            why = self._ask(about.dst_node_id, asked)
            if why:
                failed[about.dst_node_id] = why
        if group.isdigit():
            self.rounds[kind, int(group)] = Asked(tuple(self.listed), failed)
        self.each(kind, int(group) if group.isdigit() else 0)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:  # noqa: ARG002
        """What has come by now, also what nobody waits for."""
        found = [message for at, message in self.coming if at <= self.now]
        self.coming = [(at, message) for at, message in self.coming if at > self.now]
        return found

    def _ask(self, node: int, asked: Message) -> str | None:
        """One client; why it fails, if it does."""
        began = self.now
        if node in self.away:  # the question waits until it is back, or expires
            if self.away[node] > self.now + DEADLINE - 2 * MARGIN:
                return self._gone(node, asked)
            began = max(began, self.away[node])
        fault = self._fault()
        self.counts[fault] = self.counts.get(fault, 0) + 1
        if fault == "killed":
            return self._kill(node, asked)
        if fault == "crashed":
            self._send(began + 1.0, self._error(asked, ErrorCode.CLIENT_APP_CRASHED))
            return "its process died"
        if fault == "damaged":
            return self._damage(node, asked, began)
        answer = self._call(node, asked)
        if fault == "late":
            self._send(self.now + DEADLINE + self.draws.uniform(MARGIN, 3 * DEADLINE), answer)
            return "no answer within 30 s"
        latest = self.now + DEADLINE - MARGIN
        self._send(self.draws.uniform(began, latest if fault == "slow" else min(began + 1.0, latest)), answer)
        if fault == "asked_twice":
            self._send(self.draws.uniform(began, latest), self._call(node, asked))
        if fault == "repeated":
            self._send(self.draws.uniform(self.now, self.now + 4 * DEADLINE), answer)
            self._send(self.now, self.draws.choice(self.earlier or [answer]))
        self.earlier.append(answer)
        return None

    def _fault(self) -> str:
        """What happens to a question, mostly nothing."""
        odds = dict(vars(self.odds))
        if self.repaired and (self.tries[1] > 2 or self.tries[0][0] != "train"):
            odds = {name: value for name, value in odds.items() if name in ("slow", "repeated", "asked_twice")}
        names = [*odds, "none"]
        return self.draws.choices(names, [*odds.values(), 1 - sum(odds.values())])[0]

    def _kill(self, node: int, asked: Message) -> str:
        """A client, at one of the moments of its turn; its answer is never sent."""
        moment = self.draws.choice(["before", "training", "writing", "after"])
        with pytest.MonkeyPatch.context() as patch:
            if moment == "training":
                patch.setattr(client, "remember", _die)
            if moment == "writing":
                patch.setattr(Path, "replace", _die)
            try:
                if moment != "before":
                    self._call(node, asked)
            except KilledError:
                pass
        longest = DEADLINE / 2 if self.repaired else 4 * DEADLINE
        self.away[node] = self.now + self.draws.uniform(1.0, longest)
        self.missed[node] = self.now + self.draws.uniform(1.0, 2 * DEADLINE)
        return self._gone(node, asked)

    def _gone(self, node: int, asked: Message) -> str:
        """No answer, or, if the server learns of it in time, that there will be none."""
        if self.missed[node] > self.now + DEADLINE - MARGIN or self.missed[node] > self.away[node]:
            return "no answer within 30 s"
        self._send(self.missed[node], self._error(asked, ErrorCode.NODE_UNAVAILABLE))
        return "it is gone"

    def _damage(self, node: int, asked: Message, began: float) -> str:
        """A byte of the facts or of the tensors, or the end of them, in the question or in the answer."""
        if self.draws.random() < 0.5:
            asked.content = self._spoil(asked.content)
            self._send(began + 1.0, self._call(node, asked))
            return "it refuses: "
        answer = self._call(node, asked)
        answer.content = self._spoil(answer.content)
        self._send(began + 1.0, answer)
        return "refused: "

    def _spoil(self, content: RecordDict) -> RecordDict:
        told = dict(content.config_records["facts"])
        data = bytearray(from_records(content).data)
        facts = bytearray(str(told["json"]).encode())
        part = data if data and self.draws.random() < 0.7 else facts
        place = self.draws.randrange(len(part))
        if self.draws.random() < 0.3:
            del part[place:]
        else:
            part[place] ^= 1 << self.draws.randrange(7)
        told["json"] = facts.decode(errors="replace")
        return RecordDict({"facts": ConfigRecord(told), "0": as_record(bytes(data))})

    def _call(self, node: int, asked: Message) -> Message:
        """The client's own functions, in what is a new process each time."""
        return flower_client.app(asked, Context(1, node, self.nodes[node], RecordDict(), {}))

    def _send(self, at: float, answer: Message) -> None:
        self.coming.append((at, answer))

    def _error(self, asked: Message, code: int) -> Message:
        return Message(Error(code, "of Flower"), reply_to=asked)


def _die(*_: Any) -> None:
    raise KilledError
