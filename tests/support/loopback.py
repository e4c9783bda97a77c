"""Flower's grid without a network: clients are called in this process, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from protofed.deploy.bare_grid import BareGrid
from protofed.deploy.flower_client import app as protofed_app
from protofed.deploy.processes import SIMULATION
from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import pack


class Loopback(BareGrid):
    """`trouble` may change an answer, or swallow it; clients without a client.yaml are `simulated`, or strangers'."""

    def __init__(
        self,
        nodes: dict[int, dict[str, Any]],
        trouble: Callable[[Message], list[Message]] | None = None,
        app: ClientApp = protofed_app,
        run_config: Mapping[str, Any] | None = None,
        simulated: bool = True,
    ):
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what a ServerApp's process is told
        self.contexts = {
            node: Context(1, node, config, RecordDict(), dict(run_config or {})) for node, config in nodes.items()
        }
        self.app, self.simulated = app, simulated
        self.trouble = trouble or (lambda answer: [answer])
        self.offline: set[int] = set()
        self.answers: list[Message] = []
        self.asked: list[Message] = []

    def get_node_ids(self) -> list[int]:
        """Who is there."""
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Every message is answered at once."""
        numbers = []
        for message in messages:
            number = f"message-{len(self.asked)}"
            about = message.metadata
            named = Metadata(
                1, number, 1, about.dst_node_id, "", about.group_id, about.created_at, about.ttl, about.message_type
            )
            asked = Message(content=message.content, metadata=named)  # type: ignore[call-overload]  # as Flower does
            self.asked.append(asked)
            numbers.append(number)
            with pytest.MonkeyPatch.context() as patch:
                if self.simulated:
                    patch.setenv(SIMULATION, "1")
                self.answers += self.trouble(self.app(asked, self.contexts[about.dst_node_id]))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:  # noqa: ARG002
        """What has come for these, and some that nobody waits for."""
        found, self.answers = self.answers, []
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:  # noqa: ARG002
        """Both, as Flower's strategies do it."""
        return self.pull_messages(self.push_messages(messages))


def packed(*what: Any) -> RecordDict:
    """Facts, and perhaps an upload, as Flower carries them."""
    return to_records(pack(*what))


def facts_of(message: Message) -> dict[str, Any]:
    """What a message says."""
    facts: dict[str, Any] = json.loads(from_records(message.content).text)
    return facts


def data_of(message: Message) -> bytes:
    """The tensors of a message, encoded."""
    return from_records(message.content).data


def size_of(message: Message) -> int:
    """Bytes of a message."""
    return from_records(message.content).size()


def in_simulation(clients: int) -> dict[int, dict[str, Any]]:
    """The nodes of a simulation."""
    return {100 + k: {"partition-id": k, "num-partitions": clients} for k in range(clients)}


def with_folder(folder: Path, number: int, **says: Any) -> dict[str, Any]:
    """The node of a client whose owner has a client.yaml, and allows the small batches that tests have."""
    import yaml

    place = folder / f"client-{number}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "client.yaml").write_text(yaml.safe_dump({"id": number, "threads": 1, "min_batch": 1, **says}))
    return {"client": str(place / "client.yaml")}
