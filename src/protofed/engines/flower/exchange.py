"""Asking clients and waiting for their answers until a deadline: one bad client must not end a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from protofed.trust.validation import RefusedError

POLL = 0.1
"""Seconds between two looks for answers."""

T = TypeVar("T")


class Answers(NamedTuple, Generic[T]):
    """What came back, and why the rest did not, by node."""

    given: dict[int, T]
    left_out: dict[int, str]
    bytes_up: int


def exchange(
    grid: Grid,
    questions: Mapping[int, RecordDict],
    kind: str,
    group: str,
    deadline: float,
    read: Callable[[int, RecordDict], tuple[T, int]],
) -> Answers[T]:
    """Ask every node its question; `read` checks an answer and says how many bytes it had."""
    began, nodes = time.monotonic(), list(questions)
    messages = [Message(questions[node], node, kind, group_id=group, ttl=deadline) for node in nodes]
    numbers = list(grid.push_messages(messages))
    waiting = {number: node for number, node in zip(numbers, nodes, strict=True) if number}
    given: dict[int, T] = {}
    left_out = {node: "it could not be asked" for number, node in zip(numbers, nodes, strict=True) if not number}
    received = 0
    while waiting:
        for answer in grid.pull_messages(list(waiting)):
            node = waiting.pop(answer.metadata.reply_to_message_id, None)
            if node is None:  # repeated, or late
                continue
            if answer.has_error():
                left_out[node] = f"error {answer.error.code}: {_word(answer.error.reason)}"
                continue
            try:
                given[node], size = read(node, answer.content)
                received += size
            except RefusedError as error:
                left_out[node] = f"refused: {error}"
        if time.monotonic() - began > deadline:  # after a last look: asking may take long too
            break
        if waiting:
            time.sleep(POLL)
    left_out |= dict.fromkeys(waiting.values(), f"no answer within {deadline:g} s")
    return Answers(given, left_out, received)


def _word(reason: str | None) -> str:
    """The first word of a reason, if it is a plain one: the rest may be anything, of a client's data too."""
    first = (reason or "").split(":")[0].split("(")[0].strip()
    return first if first.isidentifier() and len(first) < 60 else "unknown"
