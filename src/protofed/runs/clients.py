"""What a run asks of its clients, wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from protofed.data.federation import Federation
from protofed.engines.base import Engine, Outcome
from protofed.engines.public_phase import PublicPhase
from protofed.evaluation.accuracy import Evaluation, Evaluator
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Clock, PublicExchange
from protofed.server.public_exchange import PublicClients


class Clients(ABC):
    """The clients of a run."""

    here: ClassVar[bool]  # whether their data and models are in this process
    name: str  # of what trains them, as result.json says it

    @abstractmethod
    def members(self) -> Sequence[int]:
        """Who may take part in the next round, in client order."""

    @abstractmethod
    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """Local training of the clients in `who`, which are in client order."""

    def trained_on(self, experiment: Experiment) -> Experiment:
        """The experiment with the data that was really there."""
        return experiment

    @property
    def tests_late(self) -> bool:
        """Whether the models of a round are tested with the turns of the next one."""
        return False

    def test_and_round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> tuple[Evaluation, Outcome]:
        """How good the models are before a round, and the round."""
        return self.evaluate(broadcast), self.round(who, broadcast, clock)

    @abstractmethod
    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """How good the clients' models are, and the one that the server sends."""

    @abstractmethod
    def declared(self, clock: Clock) -> list[int]:
        """The most samples that prototypes of a round's clients may count."""

    def named(self, clock: Clock) -> Tensor | None:  # noqa: ARG002
        """Which classes a round's clients have named [N, C]; None where nobody names any."""
        return None

    @abstractmethod
    def public_clients(
        self, method: PublicExchange, who: Sequence[int], broadcast: Broadcast, clock: Clock
    ) -> PublicClients:
        """The clients of a round, about to look at public images."""

    @abstractmethod
    def move(self, federation: Federation) -> None:
        """Go on with other data of the same clients."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the clients' models; nothing where no turn outlasts a round."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027 - most have nothing to restore
        """Go on from what `state` has said."""


class LocalClients(Clients):
    """Those of an engine in this process."""

    here: ClassVar[bool] = True

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name = engine, engine.name
        self.evaluator = Evaluator(engine)

    def members(self) -> Sequence[int]:
        """All of them."""
        return range(self.engine.federation.total)

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """By the engine."""
        return self.engine.round(who, broadcast, clock)

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """By the engine, on the clients' test data."""
        return self.evaluator(broadcast)

    def declared(self, clock: Clock) -> list[int]:
        """By the data that they hold."""
        return self.engine.declared(clock)

    def public_clients(
        self, method: PublicExchange, who: Sequence[int], broadcast: Broadcast, clock: Clock
    ) -> PublicClients:
        """By the engine, on the run's public images."""
        assert self.engine.public is not None  # `prepare` refuses a run without
        return PublicPhase(self.engine, method, self.engine.public, who, broadcast, clock)

    def move(self, federation: Federation) -> None:
        """The engine takes the data in; test data may differ too."""
        self.engine.move(federation)
        self.evaluator = Evaluator(self.engine)
