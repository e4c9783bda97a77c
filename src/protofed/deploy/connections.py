"""Who is connected to a server, and what clients have said of themselves."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flwr.serverapp import Grid

from protofed.data.preparation import Shape
from protofed.deploy.exchange import Question, exchange
from protofed.deploy.server_settings import Settings, read_nodes
from protofed.deploy.wire import LARGEST, Packet, pack, unpack
from protofed.errors import RefusedError
from protofed.experiment import Experiment
from protofed.runs.network_label import MOST_CLASSES, is_usable

LOG = logging.getLogger("flwr")
LARGEST_SAMPLE = 2**24
"""Numbers of a client's sample: the server makes one of the size that the client names."""
LONGEST_NAMES = 400_000
"""Characters of all names of classes and domains together: every message has them."""
MOST_SAMPLES = 10**9
"""That a client may say it trains on."""
PAUSE = 1.0
"""Seconds between two looks for clients."""
AWAY = "not connected"
NO_DATA = "it brings no data, but others do: say --data"
SOME_DATA = "it brings data, and nobody did when the run began"


class Known(NamedTuple):
    """A client that has said who it is."""

    node: int
    brings: bool  # data of its own
    samples: int  # that it says it trains on
    shape: Shape
    classes: tuple[str, ...]
    domains: tuple[str, ...]


class Connections:
    """Who is connected. A node is one client, and a client one node, for a whole run."""

    def __init__(self, grid: Grid, experiment: Experiment, settings: Settings, run: str) -> None:
        self.grid, self.experiment, self.settings, self.run = grid, experiment, settings, run
        self.known: dict[int, Known] = {}
        self.classes: list[str] | None = None  # of the run, once it has begun
        self.brings: bool | None = None  # likewise
        self.refused: dict[int, str] = {}  # nodes
        self.failed: dict[int, str] = {}  # nodes that did not say who they are when they were last asked
        self.registered = read_nodes(Path(settings.nodes)) if settings.nodes else {}

    def domains(self, begun: Sequence[str]) -> list[str]:
        """Those that a run began with, and those of who came later: results are told by domain, nothing else is."""
        return list(dict.fromkeys([*begun, *(name for _, one in sorted(self.known.items()) for name in one.domains)]))

    def facts(self, **more: Any) -> dict[str, Any]:
        """What every message says."""
        return {"run": self.run, "experiment": dataclasses.asdict(self.experiment), **more}

    def connected(self) -> dict[int, int]:
        """The nodes of the clients that are there now; new ones are asked who they are."""
        nodes = set(self.grid.get_node_ids())
        self.refused = {node: why for node, why in self.refused.items() if node in nodes}  # it may return mended
        self.failed = {}
        new = nodes - {client.node for client in self.known.values()} - self.refused.keys()
        if new:
            questions = dict.fromkeys(sorted(new), Question("query.hello", pack(self.facts())))
            answers = exchange(self.grid, questions, "hello", self.settings.deadline, self._read_hello)
            for node, (number, client) in sorted(answers.given.items(), key=lambda item: item[1][0]):
                self._bind(node, number, client)
            self._sort_out()
            self.failed = answers.left_out
            for node, reason in self.failed.items():
                LOG.warning("node %d is left out: %s", node, reason)
        return {number: client.node for number, client in sorted(self.known.items()) if client.node in nodes}

    def absent(self, members: Collection[int]) -> dict[int, str]:
        """Why some clients do not take part; whose node it was that failed is known from their keys."""
        reasons, nodes = self.refused | self.failed, self.registered
        return {member: reasons.get(nodes[member], AWAY) if member in nodes else AWAY for member in members}

    def wait(self, number: int, seconds: float, who: Collection[int]) -> list[int]:
        """Until so many of some clients are there, or the time is over."""
        until = time.monotonic() + seconds
        while True:
            found = [member for member in self.connected() if member in who]
            if len(found) >= number or time.monotonic() >= until:
                return found
            time.sleep(PAUSE)

    def _read_hello(self, node: int, packet: Packet) -> tuple[int, Known]:
        facts, _ = unpack(packet, LARGEST)
        number, samples, shape = facts.get("id"), facts.get("samples"), facts.get("shape")
        brings, tokens, masked = facts.get("brings"), facts.get("tokens"), facts.get("masked")
        names = [facts.get("classes"), facts.get("domains")]
        if not (isinstance(number, int) and isinstance(brings, bool) and isinstance(shape, list)):
            raise RefusedError("it does not say who it is")
        if not (isinstance(samples, int) and 1 <= samples <= MOST_SAMPLES):
            raise RefusedError("it does not say how many samples it trains on")
        if not (isinstance(tokens, int) and isinstance(masked, bool) and all(isinstance(size, int) for size in shape)):
            raise RefusedError("its samples have no usable shape")
        if not is_usable(shape, tokens) or math.prod(shape) > LARGEST_SAMPLE:
            raise RefusedError("its samples have no usable shape")
        if not all(isinstance(some, list) and some and all(_is_name(name) for name in some) for some in names):
            raise RefusedError("it does not name its classes")
        classes, domains = (tuple(some) for some in names)  # type: ignore[arg-type]  # lists of names, as was checked
        if len(classes) > MOST_CLASSES:
            raise RefusedError("its classes are too many")
        return number, Known(node, brings, samples, Shape(shape, tokens, masked), classes, domains)

    def _bind(self, node: int, number: int, client: Known) -> None:
        why = None
        if not 0 <= number < self.experiment.number_of_clients:
            why = f"there is no client {number}"
        elif number in self.known:
            why = f"client {number} is another node"
        elif self.registered and self.registered.get(number) != node:
            why = f"its key is not that of client {number}"
        elif self.brings not in (None, client.brings):
            why = NO_DATA if self.brings else SOME_DATA
        elif len("".join([*self._names(), *client.classes, *client.domains])) > LONGEST_NAMES:
            why = "the names of its classes and domains are too long"
        elif self.classes is not None and not set(client.classes) <= set(self.classes):
            why = "it has classes that the run began without"
        if why is None:
            self.known[number] = client
            LOG.info("client %d is node %d and trains on %d samples", number, node, client.samples)
        else:
            self._refuse(node, why)

    def _names(self) -> set[str]:
        """Of the classes and domains that are known so far."""
        return {*(self.classes or ()), *(name for one in self.known.values() for name in (*one.classes, *one.domains))}

    def _sort_out(self) -> None:
        """Before a run begins: all bring data, or none does. Who forgot it would train on something else unnoticed."""
        if self.brings is None and any(client.brings for client in self.known.values()):
            for number, client in list(self.known.items()):
                if not client.brings:
                    del self.known[number]
                    self._refuse(client.node, NO_DATA)

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = why
        LOG.warning("node %d is refused: %s", node, why)


def _is_name(name: object) -> bool:
    """Whether it is a text that can be written and shown."""
    return isinstance(name, str) and name.isprintable() and name != ""
