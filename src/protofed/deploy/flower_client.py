"""The client as Flower's ClientApp, for its simulation and for SuperLinks of one's own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from protofed.deploy.client import HANDLERS, Failed, WarmClient
from protofed.deploy.client_memory import ClientMemory
from protofed.deploy.owner import Owner
from protofed.deploy.processes import SIMULATION
from protofed.deploy.records import as_record, from_record, from_records, to_records
from protofed.deploy.wire import FAILED, REFUSED
from protofed.errors import RefusedError


class StateMemory:
    """In the state that Flower keeps for a client during a run: in a simulation, and wherever no folder is given."""

    NAME = "protofed-own-"
    NOTE = "protofed-note-"

    def __init__(self, state: RecordDict) -> None:
        self.state = state

    def rounds(self) -> list[int]:
        """Of which rounds there are models."""
        return [int(name.removeprefix(self.NAME)) for name in self.state if name.startswith(self.NAME)]

    def read(self, number: int) -> bytes:
        """The model after a round."""
        return from_record(self.state.config_records[f"{self.NAME}{number}"])

    def write(self, number: int, data: bytes) -> None:
        """Keep the model after a round."""
        self.state[f"{self.NAME}{number}"] = as_record(data)

    def forget(self, number: int) -> None:
        """Do not keep it any longer."""
        del self.state[f"{self.NAME}{number}"]

    def note(self, name: str) -> bytes:
        """What is kept within a round under a name; nothing if there is none."""
        key = self.NOTE + name
        return from_record(self.state.config_records[key]) if key in self.state else b""

    def keep(self, name: str, data: bytes) -> None:
        """Keep it in place of what was kept before."""
        self.state[self.NOTE + name] = as_record(data)


def owner_of(node: Mapping[str, Any]) -> Owner:
    """From a node's configuration: the path of a client.yaml, or, where there is none, a number."""
    if "client" not in node:
        number = int(node["partition-id"])
        if SIMULATION not in os.environ:
            return Owner(number, threads=1)
        return Owner(number, threads=1, min_samples=1, min_batch=1, simulated=True)
    return Owner.read(Path(str(node["client"]))).with_data(str(node["data"]) if "data" in node else None)


def answer(kind: str, message: Message, context: Context) -> Message:
    """A client's answer, in what may be a new process for every message."""
    try:
        owner = owner_of(context.node_config)
        memory: ClientMemory | None = None if owner.memory is not None else StateMemory(context.state)
        found = WarmClient(owner).answer(kind, from_records(message.content), memory)
    except RefusedError as error:
        found = Failed(REFUSED, str(error))
    except Exception as error:  # of client.yaml, or of the data that it names
        traceback.print_exc()
        found = Failed(FAILED, type(error).__name__)
    if isinstance(found, Failed):
        print(f"refused: {found.reason}" if found.code == REFUSED else f"failed: {found.reason}", flush=True)
        return Message(Error(found.code, found.reason), reply_to=message)
    return Message(to_records(found), reply_to=message)


app = ClientApp()
for _kind in HANDLERS:
    _category, _, _action = _kind.partition(".")
    _register = getattr(app, _category)
    (_register(_action) if _action else _register())(partial(answer, _kind))
