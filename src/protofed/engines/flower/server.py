"""The server's side: the rounds of a run with clients that are elsewhere, come late, fail, and may come back."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from protofed.data import Client, Federation, Samples
from protofed.engines.base import Engine
from protofed.engines.flower.exchange import Answers, exchange
from protofed.engines.flower.wire import pack, size, unpack
from protofed.engines.sequential import Sequential
from protofed.errors import LostError, UserError
from protofed.evaluation import Evaluation
from protofed.experiment import Experiment, read_yaml
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, PublicExchange
from protofed.randomness import generator
from protofed.results.folder import RunFolder, write_atomically
from protofed.results.progress import Progress
from protofed.runner import Run
from protofed.trust.validation import RefusedError, Schema, tensors_of

T = TypeVar("T")

LOG = logging.getLogger("flwr")
LARGEST = 2 * 10**9
"""Bytes of an answer."""
TRIES = 3
"""How often a round is played until it counts."""
PAUSE = 1.0
"""Seconds between two looks for clients."""


@dataclass(frozen=True)
class Settings:
    """How a server treats its clients; keys of the Flower app's configuration."""

    out: str = "run"  # the run folder; one that is there is continued
    minimum: int = 1  # clients without whose answers a round does not count
    deadline: float = 600.0  # seconds that clients have to answer
    wait: float = 120.0  # seconds to wait for all clients at the beginning, and for the minimum later
    nodes: str = ""  # JSON file with the node of each client, where that is known from their keys

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """From an app's configuration."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


class Known(NamedTuple):
    """A client that has said who it is."""

    node: int
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    domains: tuple[str, ...]


class Clients:
    """Who is connected. A node is one client, and a client one node, for a whole run."""

    def __init__(self, grid: Grid, experiment: Experiment, settings: Settings, run: str) -> None:
        self.grid, self.experiment, self.settings, self.run = grid, experiment, settings, run
        self.known: dict[int, Known] = {}
        self.classes: tuple[str, ...] | None = None
        self.refused: dict[int, str] = {}  # nodes
        text = Path(settings.nodes).read_text(encoding="utf-8") if settings.nodes else "{}"
        self.registered = {int(client): int(node) for client, node in json.loads(text).items()}

    def facts(self, **more: Any) -> dict[str, Any]:
        """What every message says."""
        return {"run": self.run, "experiment": dataclasses.asdict(self.experiment), **more}

    def connected(self) -> dict[int, int]:
        """The nodes of the clients that are there now; new ones are asked who they are."""
        nodes = set(self.grid.get_node_ids())
        new = nodes - {client.node for client in self.known.values()} - self.refused.keys()
        if new:
            questions = dict.fromkeys(sorted(new), pack(self.facts()))
            seconds = self.settings.deadline
            answers = exchange(self.grid, questions, "query.hello", "hello", seconds, self._read_hello)
            for node, (number, client) in sorted(answers.given.items(), key=lambda item: item[1][0]):
                self._bind(node, number, client)
            for node, reason in answers.left_out.items():
                LOG.warning("node %d is left out: %s", node, reason)
        return {number: client.node for number, client in sorted(self.known.items()) if client.node in nodes}

    def wait(self, number: int, seconds: float) -> dict[int, int]:
        """Until so many clients are there, or the time is over."""
        until = time.monotonic() + seconds
        while len(found := self.connected()) < number and time.monotonic() < until:
            time.sleep(PAUSE)
        return found

    def _read_hello(self, node: int, content: RecordDict) -> tuple[tuple[int, Known], int]:
        facts, _ = unpack(content, LARGEST)
        number, shape = facts.get("id"), facts.get("shape")
        names = [facts.get("classes"), facts.get("domains")]
        if not (isinstance(number, int) and isinstance(shape, list) and len(shape) == 3):
            raise RefusedError("it does not say who it is")
        if not all(isinstance(size, int) and 1 <= size <= 10_000 for size in shape):
            raise RefusedError("its images have no usable shape")
        if not all(isinstance(some, list) and some and all(isinstance(n, str) for n in some) for some in names):
            raise RefusedError("it does not name its classes")
        classes, domains = (tuple(some) for some in names)  # type: ignore[arg-type]  # lists of names, as was checked
        return (number, Known(node, (shape[0], shape[1], shape[2]), classes, domains)), size(content)

    def _bind(self, node: int, number: int, client: Known) -> None:
        why = None
        if not 0 <= number < self.experiment.clients:
            why = f"there is no client {number}"
        elif number in self.known:
            why = f"client {number} is another node"
        elif self.registered and self.registered.get(number) != node:
            why = f"its key is not that of client {number}"
        elif self.classes is not None and not set(client.classes) <= set(self.classes):
            why = f"client {number} has classes that the run began without"
        if why is None:
            self.known[number] = client
            LOG.info("client %d is node %d", number, node)
        else:
            self.refused[node] = why
            LOG.warning("node %d is refused: %s", node, why)


class Remote(Sequential):
    """An engine that asks clients over the network; its groups only stand for them."""

    name: ClassVar[str] = "flower"
    holds_data: ClassVar[bool] = False

    def __init__(self, here: Engine, clients: Clients, schema: Schema) -> None:
        super().__init__(here.experiment, here.method, here.federation, here.groups, here.device)
        self.clients, self.schema, self.settings = clients, schema, clients.settings
        self.clock = Clock(0, self.experiment.rounds)

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> tuple[Upload, list[float]]:
        """Until the minimum of clients has answered, or they have failed too often."""
        self.exchanged, self.clock = (0, 0), clock
        for _ in range(TRIES):
            there = self.clients.connected()
            answers = self._ask("train", [member for member in who if member in there], broadcast, self._read_upload)
            absent = dict.fromkeys((member for member in who if member not in there), "not connected")
            self.left_out = dict(sorted((absent | answers.left_out).items()))
            for member, why in self.left_out.items():
                LOG.warning("round %d: client %d is left out: %s", clock.round + 1, member, why)
            if len(answers.given) >= min(self.settings.minimum, len(who)):
                break
            LOG.warning("round %d is played again: %d of %d answered", clock.round + 1, len(answers.given), len(who))
            if len(self.clients.wait(self.settings.minimum, self.settings.wait)) < self.settings.minimum:
                raise LostError(f"fewer than {self.settings.minimum} clients are left")
        else:
            raise LostError(
                f"round {clock.round + 1} failed {TRIES} times: fewer than {self.settings.minimum} answered"
            )
        members = sorted(answers.given)
        losses = [answers.given[member][1] for member in members]
        uploads = Upload.gather([answers.given[member][0] for member in members])
        up, down = self.exchanged  # all bytes; the runner counts these itself:
        sent = sum(self.method.send(broadcast, member).size() for member in members)
        self.exchanged = up - sum(uploads.sizes()), down - sent
        return uploads, losses

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """What the clients that are there say of their models."""
        there = list(self.clients.connected())
        answers = self._ask("evaluate", there, broadcast, self._read_scores)
        tested = sorted(answers.given)
        if not tested:
            raise LostError("no client has answered how good the models are")
        found: list[Evaluation] = [answers.given[member] for member in tested]
        names = [name for name in found[0].per_client if all(name in one.per_client for one in found)]
        per_client = {name: [one.per_client[name][0] for one in found] for name in names}
        everyone = len(tested) == self.federation.total
        return dataclasses.replace(found[0], per_client=per_client, tested=None if everyone else tested)

    def _ask(
        self,
        kind: str,
        members: Sequence[int],
        broadcast: Broadcast,
        read: Callable[[int, RecordDict], tuple[T, int]],
    ) -> Answers[T]:
        """Each of some clients the same, with what the server sends it; answers and reasons by client."""
        there = self.clients.known
        clock = [self.clock.round, self.clock.rounds, list(self.clock.who), self.clock.clients, self.clock.seed]
        named = {"classes": self.federation.classes, "domains": self.federation.domains}
        facts = self.clients.facts(clock=clock, **named)
        questions = {there[member].node: pack(facts, self.method.send(broadcast, member)) for member in members}
        number = {there[member].node: member for member in members}
        given = exchange(
            self.clients.grid,
            questions,
            kind,
            str(self.clock.round + 1),
            self.settings.deadline,
            lambda node, content: read(number[node], content),
        )
        up, down = self.exchanged
        self.exchanged = up + given.bytes_up, down + sum(size(question) for question in questions.values())
        return Answers(
            {number[node]: value for node, value in given.given.items()},
            {number[node]: why for node, why in given.left_out.items()},
            given.bytes_up,
        )

    def _read_upload(self, member: int, content: RecordDict) -> tuple[tuple[Upload, float], int]:
        facts, data = unpack(content, LARGEST)
        loss = facts.get("loss")
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        if not (isinstance(loss, float) and math.isfinite(loss)):
            raise RefusedError("its loss is not a number")
        return (Upload.from_flat(self.schema.check(tensors_of(data))), loss), size(content)

    def _read_scores(self, member: int, content: RecordDict) -> tuple[Evaluation, int]:
        facts, _ = unpack(content, LARGEST)
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        names = [item.name for item in dataclasses.fields(Evaluation)]
        try:
            found = Evaluation(**{name: facts[name] for name in names})
            values = [value for some in found.per_client.values() for value in some]
            values += [value for some in found.per_domain.values() for value in some.values()]
            right = all(isinstance(value, float) and 0 <= value <= 100 for value in values)
            right &= all(len(some) == 1 for some in found.per_client.values()) and bool(values)
            right &= set(found.diagnostic) <= found.per_client.keys() and (found.interval, found.tested) == ({}, None)
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise RefusedError("its accuracies are none")
        return found, size(content)


def serve(grid: Grid, experiment: Experiment, settings: Settings) -> None:
    """A run, from its beginning or from where its folder says."""
    check(experiment)
    path = Path(settings.out)
    folder = RunFolder(path)
    label = path / "flower.json"
    name = json.loads(label.read_text(encoding="utf-8"))["run"] if label.exists() else secrets.token_hex(8)
    clients = Clients(grid, experiment, settings, name)
    there = clients.wait(experiment.clients, settings.wait)
    if len(there) < settings.minimum:
        raise LostError(f"{len(there)} of at least {settings.minimum} clients came within {settings.wait:g} s")
    run = _prepared(experiment, clients)
    if label.exists():
        run.restore(folder)
    else:
        folder = RunFolder.create(path, run.experiment)
        write_atomically(label, json.dumps({"run": name}) + "\n")
    run.play(folder, Progress())


def check(experiment: Experiment) -> None:
    """Refuse what cannot be done over a network."""
    method = build_method(experiment.method, experiment.params)
    if isinstance(method, PublicExchange):
        raise UserError("--method", experiment.method, "over a network there is no exchange within a round")
    for name in ("drift", "encoder", "start", "novel"):
        if getattr(experiment, name) != getattr(Experiment, name):
            raise UserError(f"--{name}", getattr(experiment, name), "it is not for runs over a network")


def _prepared(experiment: Experiment, clients: Clients) -> Run:
    """A run whose clients stand for those that are elsewhere."""
    known = [client for _, client in sorted(clients.known.items())]
    classes = tuple(dict.fromkeys(name for client in known for name in client.classes))
    domains = tuple(dict.fromkeys(name for client in known for name in client.domains))
    clients.classes = classes
    shapes = {number: client.shape for number, client in clients.known.items()}
    stand_ins = [_noise(shapes.get(number, known[0].shape), len(classes)) for number in range(experiment.clients)]
    local = dataclasses.replace(experiment, engine="sequential", width=None, device="cpu")
    federation = Federation(tuple(stand_ins), classes, domains)
    example = Run(local, federation=federation)
    upload, _ = example.engine.round([0], example.broadcast, Clock(0, experiment.rounds, (0,), 1, experiment.seed))
    run = Run(local, federation=federation)
    remote = Remote(run.engine, clients, Schema.of(upload.client(0)))
    run.engine, run.evaluator = remote, remote.evaluate
    run.experiment = experiment
    return run


def _noise(shape: tuple[int, int, int], classes: int) -> Client:
    """A client with two meaningless images of each class."""
    draws = generator(0, "stand-in")
    images = torch.randint(0, 256, (2 * classes, *shape), dtype=torch.uint8, generator=draws)
    samples = Samples.of(images, torch.arange(classes).repeat(2))
    return Client.of(samples, samples)


def server_app(folder: Path) -> ServerApp:
    """The ServerApp of a directory that `protofed flower-app` wrote."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        serve(grid, Experiment.from_mapping(read_yaml(folder / "experiment.yaml")), Settings.of(context.run_config))

    return app
