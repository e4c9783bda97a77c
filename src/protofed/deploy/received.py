"""What a client was sent last in a run: it is kept beside the client's model, so that its owner can export it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from protofed.deploy.client_memory import ClientMemory
from protofed.experiment import Experiment
from protofed.internal.schema import made
from protofed.messages import Broadcast
from protofed.trust.screening import tensors_of

RECEIVED = "received.bin"
"""A line of JSON, and the encoded Broadcast."""


@dataclass(frozen=True)
class Received:
    """What a client was sent last in a run, and what it was to do with it."""

    experiment: Experiment
    classes: list[str]
    domains: list[str]
    rounds: int  # that had been played when it was sent
    data: bytes  # an encoded Broadcast, which was screened when it came
    trained_on: str | None = None  # the owner's data, where it is no part of the experiment's
    tokens: int = 0  # of all clients together, where token ids are arrays'

    @property
    def broadcast(self) -> Broadcast:
        """The tensors."""
        return Broadcast.from_flat(tensors_of(self.data))

    def keep(self, memory: ClientMemory) -> None:
        """Keep it in place of what was kept before."""
        head = {
            "experiment": dataclasses.asdict(self.experiment),
            **{name: getattr(self, name) for name in ("classes", "domains", "rounds", "trained_on", "tokens")},
        }
        memory.keep(RECEIVED, json.dumps(head).encode() + b"\n" + self.data)

    @classmethod
    def read(cls, memory: ClientMemory) -> Received | None:
        """What was kept of a run; None where nothing was."""
        line, _, data = memory.note(RECEIVED).partition(b"\n")
        if not line:
            return None
        head = json.loads(line)
        experiment = Experiment.from_mapping(head.pop("experiment"))
        return made(RECEIVED, cls, head, experiment=experiment, data=data)
