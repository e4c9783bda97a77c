"""Asking clients and waiting for their answers until a deadline: one bad client must not end a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import FAILED, LOST, REFUSED, Packet
from protofed.errors import RefusedError
from protofed.messages import Traffic

POLL = 0.05
"""Seconds until the second look for answers; later ones are further apart, for each costs the server's process too."""
SLOWEST = 1.0
"""Seconds between two looks at most."""

LONGEST = 300
"""Characters of a client's reason that are kept."""

T = TypeVar("T")


class Question(NamedTuple):
    """What a node is asked: the kind of the message, and the message."""

    kind: str
    packet: Packet


class Answers(NamedTuple, Generic[T]):
    """What came back, and why the rest did not, by node."""

    given: dict[int, T]
    left_out: dict[int, str]
    traffic: Traffic

    def plus(self, more: Answers[T]) -> Answers[T]:
        """With what came later."""
        return Answers(self.given | more.given, self.left_out | more.left_out, self.traffic + more.traffic)


class Awaited(NamedTuple):
    """A question that was asked."""

    node: int
    until: float  # on the system's clock


class Inbox(Generic[T]):
    """Asks nodes, and looks for their answers, which are waited for until a deadline; `read` checks an answer."""

    def __init__(self, grid: Grid, deadline: float, read: Callable[[int, Packet], T]) -> None:
        self.grid, self.deadline, self.read = grid, deadline, read
        self.awaited: dict[str, Awaited] = {}  # by the number of a message
        self._asked = Answers[T]({}, {}, Traffic())  # since the last look: what was sent, and who could not be asked

    def ask(self, questions: Mapping[int, Question], group: str) -> None:
        """Ask every node its question."""
        until, nodes = time.monotonic() + self.deadline, list(questions)
        records = {id(packet): to_records(packet) for _, packet in questions.values()}  # most are asked the same
        messages = [
            Message(records[id(packet)], node, kind, group_id=group, ttl=self.deadline)
            for node, (kind, packet) in questions.items()
        ]
        numbers = list(self.grid.push_messages(messages))
        pairs = list(zip(numbers, nodes, strict=True))
        self.awaited |= {number: Awaited(node, until) for number, node in pairs if number}
        lost = {node: "it could not be asked" for number, node in pairs if not number}
        sent = sum(packet.size() for _, packet in questions.values())
        self._asked = self._asked.plus(Answers({}, lost, Traffic(0, sent)))

    def look(self) -> Answers[T]:
        """What has come since the last look, and who is waited for no longer."""
        (given, left_out, traffic), self._asked = self._asked, Answers({}, {}, Traffic())
        for answer in self.grid.pull_messages(list(self.awaited)) if self.awaited else []:
            about = self.awaited.pop(answer.metadata.reply_to_message_id, None)
            if about is None:  # repeated, or late
                continue
            if answer.has_error():
                left_out[about.node] = _reason(answer.error, self._late)
                continue
            try:
                packet = from_records(answer.content)
                given[about.node] = self.read(about.node, packet)
                traffic += Traffic(packet.size(), 0)
            except RefusedError as error:
                left_out[about.node] = f"refused: {error}"
        now = time.monotonic()  # after a last look: asking may take long too
        for number in [number for number, about in self.awaited.items() if now > about.until]:
            left_out[self.awaited.pop(number).node] = self._late
        return Answers(given, left_out, traffic)

    @property
    def _late(self) -> str:
        return f"no answer within {self.deadline:g} s"


def exchange(
    grid: Grid,
    questions: Mapping[int, Question],
    group: str,
    deadline: float,
    read: Callable[[int, Packet], T],
) -> Answers[T]:
    """Ask every node its question, and wait for all answers; `read` checks an answer."""
    began, inbox = time.monotonic(), Inbox(grid, deadline, read)
    inbox.ask(questions, group)
    answers = inbox.look()
    while inbox.awaited:
        time.sleep(pause_after(time.monotonic() - began))
        answers = answers.plus(inbox.look())
    return answers


def pause_after(seconds: float) -> float:
    """How long to wait for another look for answers, after so many seconds without."""
    return min(POLL + seconds / 20, SLOWEST)


def _reason(error: Error, late: str) -> str:
    """What a client of ours answers and Flower's own errors, in words; of others the code and the type, for the rest
    may be anything, of data too.
    """
    if error.code in (REFUSED, FAILED):
        words = "".join(one for one in (error.reason or "") if one.isprintable())[:LONGEST]
        return f"it refuses: {words}" if error.code == REFUSED else f"error {error.code}: {words or 'unknown'}"
    if error.code == LOST:
        return f"refused: {error.reason}"
    if error.code in (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE):  # it has expired
        return late
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return "it is gone"
    if error.code == ErrorCode.CLIENT_APP_CRASHED:
        return "its process died"
    first = (error.reason or "").split(":")[0].split("(")[0].strip()
    return f"error {error.code}: {first if first.isidentifier() and len(first) < 60 else 'unknown'}"
