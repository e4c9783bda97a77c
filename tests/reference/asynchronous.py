"""FedBuff as a list of events and loops over clients and tensors. Nothing here calls an engine or a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

State = dict[str, Tensor]
Turn = Callable[[int, int, State], State]  # client, the round in which it began, what it was sent -> its weights


class Step(NamedTuple):
    """One aggregation."""

    time: float
    who: list[int]
    staleness: list[int]
    weights: State  # after it


class Event(NamedTuple):
    """The end of a turn."""

    time: float
    begun: int
    place: int  # in the queue of those that end together
    member: int
    sent: State


def fedbuff(
    turn: Turn,
    first: State,
    seconds: Sequence[float],
    importance: Sequence[float],
    number: int,
    rounds: int,
    places: Callable[[int], Sequence[int]],
) -> list[Step]:
    """Aggregations of so many uploads; `places` gives the order of clients whose turns began in a round."""
    weights, now, steps = first, 0.0, list[Step]()
    events: list[Event] = []
    for aggregation in range(rounds):
        waiting = {event.member for event in events}
        for member, length in enumerate(seconds):
            if member not in waiting:
                events.append(Event(now + length, aggregation, places(aggregation)[member], member, weights))
        events.sort(key=lambda event: event[:3])
        arrived, events = events[:number], events[number:]
        arrived.sort(key=lambda event: event.member)
        now = max([now, *(event.time for event in arrived)])
        total = sum(importance[event.member] for event in arrived)
        moved = {name: tensor.clone() for name, tensor in weights.items()}
        for event in arrived:
            sent = turn(event.member, event.begun, event.sent)
            share = importance[event.member] / total / (1 + aggregation - event.begun) ** 0.5
            for name in moved:
                moved[name] += share * (sent[name] - event.sent[name])
        weights = moved
        ages = [aggregation - event.begun for event in arrived]
        steps.append(Step(now, [event.member for event in arrived], ages, weights))
    return steps
