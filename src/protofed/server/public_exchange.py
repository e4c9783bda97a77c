"""The exchange on public images before a round: clients send what they make of each batch, the server answers.

What the server makes of the models after all batches is what local training starts from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from protofed.errors import LostError
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock, Method, PublicExchange, Server
from protofed.trust.screening import refusals, without


def exchange_of(method: Method) -> PublicExchange | None:
    """The method, if its clients agree on public images before a round."""
    return method if isinstance(method, PublicExchange) else None


class PublicClients(Protocol):
    """The clients of a round while they look at public images, here or elsewhere."""

    @property
    def who(self) -> Sequence[int]:
        """Those that are left, in the order of the uploads."""

    @property
    def left_out(self) -> Mapping[int, str]:
        """Why the others are not."""

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""

    @property
    def number_of_batches(self) -> int:
        """How many batches the public images make."""

    def outputs(self, number: int) -> Upload:
        """What the clients send about a batch, counted from 0."""

    def learn(self, number: int, answer: Broadcast) -> None:
        """One step of every model on a batch, towards what the server has answered."""

    def weights(self) -> Upload:
        """The models after the public images, as far as the method shares them."""


@dataclass(frozen=True)
class Agreement:
    """What clients have agreed on over public images."""

    broadcast: Broadcast  # the models that local training starts from
    who: tuple[int, ...]  # the clients that go on
    left_out: Mapping[int, str]  # the reason, by client; one whose upload was rejected goes on all the same
    traffic: Traffic


def agree(method: PublicExchange, clients: PublicClients, clock: Clock) -> Agreement:
    """A round's exchange; every upload is screened by itself.

    Raises:
        LostError: the uploads of all clients were rejected.
    """
    answers: dict[int, Broadcast] = {}
    rejected: dict[int, str] = {}

    def screened(uploads: Upload) -> Upload:
        found = refusals(uploads, Broadcast(), None)
        if len(found) == len(clients.who):
            raise LostError(f"what clients make of public images in round {clock.round + 1} was refused, of all")
        rejected.update({clients.who[row]: f"of public images: refused: {why}" for row, why in found.items()})
        return without(uploads, found) if found else uploads

    batches = range(clients.number_of_batches)
    if method.exchange == "round":
        answers = {number: method.public_aggregate(screened(clients.outputs(number))) for number in batches}
    for number in batches:
        if number not in answers:
            answers[number] = method.public_aggregate(screened(clients.outputs(number)))
        clients.learn(number, answers[number])
    models = screened(clients.weights())
    start = method.aggregate(models, Server(Broadcast(), clock._replace(who=tuple(clients.who))))
    return Agreement(start, tuple(clients.who), {**rejected, **clients.left_out}, clients.traffic)
