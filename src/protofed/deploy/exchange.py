"""Asking clients and waiting for their answers until a deadline: one bad client must not end a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import LOST, REFUSED, Packet
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


def exchange(
    grid: Grid,
    questions: Mapping[int, Question],
    group: str,
    deadline: float,
    read: Callable[[int, Packet], T],
) -> Answers[T]:
    """Ask every node its question; `read` checks an answer."""
    began, nodes = time.monotonic(), list(questions)
    records = {id(packet): to_records(packet) for _, packet in questions.values()}  # most are asked the same
    messages = [
        Message(records[id(packet)], node, kind, group_id=group, ttl=deadline)
        for node, (kind, packet) in questions.items()
    ]
    numbers = list(grid.push_messages(messages))
    waiting = {number: node for number, node in zip(numbers, nodes, strict=True) if number}
    given: dict[int, T] = {}
    left_out = {node: "it could not be asked" for number, node in zip(numbers, nodes, strict=True) if not number}
    received, late = 0, f"no answer within {deadline:g} s"
    while waiting:
        for answer in grid.pull_messages(list(waiting)):
            node = waiting.pop(answer.metadata.reply_to_message_id, None)
            if node is None:  # repeated, or late
                continue
            if answer.has_error():
                left_out[node] = _reason(answer.error, late)
                continue
            try:
                packet = from_records(answer.content)
                given[node] = read(node, packet)
                received += packet.size()
            except RefusedError as error:
                left_out[node] = f"refused: {error}"
        if time.monotonic() - began > deadline:  # after a last look: asking may take long too
            break
        if waiting:
            time.sleep(min(POLL + (time.monotonic() - began) / 20, SLOWEST))
    left_out |= dict.fromkeys(waiting.values(), late)
    asked = sum(packet.size() for _, packet in questions.values())
    return Answers(given, left_out, Traffic(received, asked))


def _reason(error: Error, late: str) -> str:
    """Flower's own errors, and what an owner refuses, in words; of others the code and the type, for the rest may be
    anything, of data too.
    """
    if error.code == REFUSED:
        words = "".join(one for one in (error.reason or "") if one.isprintable())
        return f"it refuses: {words[:LONGEST]}"
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
