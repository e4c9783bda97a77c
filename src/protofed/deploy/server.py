"""The server's side: the rounds of a run with clients that are elsewhere, come late, fail, and may come back."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import secrets
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from protofed.data import Client, Federation, Samples, check_name
from protofed.data.splits import check_split
from protofed.deploy.exchange import Answers, exchange
from protofed.deploy.follow_run import HOPELESS
from protofed.deploy.server_settings import Settings, check_out, read_nodes
from protofed.deploy.wire import pack, read_book, size, spelt, unpack
from protofed.engines.base import Engine, Outcome
from protofed.engines.private import made_up
from protofed.engines.sequential import Sequential
from protofed.errors import DivergedError, HopelessError, LostError, UserError
from protofed.evaluation.accuracy import MODELS, RULES, TESTS, Evaluation
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.yaml_files import read_yaml
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, PublicExchange
from protofed.models import factory_of
from protofed.randomness import generator
from protofed.runs.folder import RunFolder, make_folder
from protofed.runs.network_label import MOST_CLASSES, NetworkLabel, read_network_label, too_large
from protofed.runs.progress import Progress
from protofed.runs.run import Run
from protofed.server.participation import participants
from protofed.trust.screening import SLOTS, RefusedError, Schema, refusals, tensors_of
from protofed.trust.secagg import (
    PUBLIC,
    SEALED,
    SHARE,
    Layout,
    UnmaskError,
    Words,
    added,
    layout_of,
    length,
    numbers,
    threshold,
    unmask,
    usable,
)
from protofed.trust.summation import summed, upload_of

T = TypeVar("T")

LOG = logging.getLogger("flwr")
LARGEST = 2 * 10**9
"""Bytes of an answer."""
LARGEST_IMAGE = 2**24
"""Bytes of a client's image: the server makes one of the size that the client names."""
MOST_SAMPLES = 10**9
"""That a client may say it trains on."""
WORST = 1e12
"""A loss that is no usable number."""
TRIES = 3
"""How often a round is played until it counts."""
PAUSE = 1.0
"""Seconds between two looks for clients."""
AWAY = "not connected"
NO_DATA = "it brings no data, but others do: say --data"
SOME_DATA = "it brings data, and nobody did when the run began"
SCORES = {"/".join(parts) for parts in itertools.product(MODELS, TESTS, RULES)}
"""Names of accuracies that clients may tell."""


class Known(NamedTuple):
    """A client that has said who it is."""

    node: int
    brings: bool  # data of its own
    samples: int  # that it says it trains on
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    domains: tuple[str, ...]


class TrainReply(NamedTuple):
    """What a client has made in a round."""

    upload: Upload
    loss: float


class Clients:
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
            questions = dict.fromkeys(sorted(new), pack(self.facts()))
            seconds = self.settings.deadline
            answers = exchange(self.grid, questions, "query.hello", "hello", seconds, self._read_hello)
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

    def _read_hello(self, node: int, content: RecordDict) -> tuple[tuple[int, Known], int]:
        facts, _ = unpack(content, LARGEST)
        number, samples, shape = facts.get("id"), facts.get("samples"), facts.get("shape")
        brings = facts.get("brings")
        names = [facts.get("classes"), facts.get("domains")]
        if not (isinstance(number, int) and isinstance(brings, bool) and isinstance(shape, list) and len(shape) == 3):
            raise RefusedError("it does not say who it is")
        if not (isinstance(samples, int) and 1 <= samples <= MOST_SAMPLES):
            raise RefusedError("it does not say how many samples it trains on")
        if not all(isinstance(size, int) and size >= 1 for size in shape) or math.prod(shape) > LARGEST_IMAGE:
            raise RefusedError("its images have no usable shape")
        if not all(isinstance(some, list) and some and all(isinstance(n, str) for n in some) for some in names):
            raise RefusedError("it does not name its classes")
        classes, domains = (tuple(some) for some in names)  # type: ignore[arg-type]  # lists of names, as was checked
        if len(classes) > MOST_CLASSES:
            raise RefusedError("its classes are too many")
        client = Known(node, brings, samples, (shape[0], shape[1], shape[2]), classes, domains)
        return (number, client), size(content)

    def _bind(self, node: int, number: int, client: Known) -> None:
        why = None
        if not 0 <= number < self.experiment.clients:
            why = f"there is no client {number}"
        elif number in self.known:
            why = f"client {number} is another node"
        elif self.registered and self.registered.get(number) != node:
            why = f"its key is not that of client {number}"
        elif self.brings not in (None, client.brings):
            why = NO_DATA if self.brings else SOME_DATA
        elif self.classes is not None and not set(client.classes) <= set(self.classes):
            why = "it has classes that the run began without"
        if why is None:
            self.known[number] = client
            LOG.info("client %d is node %d and trains on %d samples", number, node, client.samples)
        else:
            self._refuse(node, why)

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


class Remote(Sequential):
    """An engine that asks clients over the network; its groups only stand for them."""

    name: ClassVar[str] = "flower"
    holds_data: ClassVar[bool] = False

    def __init__(self, here: Engine, clients: Clients, schema: Schema, scores: Collection[str]) -> None:
        """`scores` names the accuracies that every client has to tell."""
        super().__init__(here.experiment, here.method, here.federation, here.groups, here.device)
        self.clients, self.schema, self.settings = clients, schema, clients.settings
        self.scores = set(scores)
        self.clock = Clock(0, self.experiment.rounds)
        self._traffic = Traffic()  # of the round or evaluation that is going on

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """Until the minimum of clients has answered, or they have failed too often."""
        self._traffic, self.clock = Traffic(), clock
        needed = self._needed(who)
        for _ in range(TRIES):
            there = self.clients.connected()
            try:
                answers = self._played([member for member in who if member in there], broadcast, needed)
                lack = f"fewer than {needed} answered"
            except UnmaskError as error:
                answers, lack = Answers({}, {}, Traffic()), str(error)
            absent = self.clients.absent([member for member in who if member not in there])
            left_out = dict(sorted((absent | answers.left_out).items()))
            for member, why in left_out.items():
                LOG.warning("round %d: client %d is left out: %s", clock.round + 1, member, why)
            if len(answers.given) >= needed:
                break
            LOG.warning("round %d is played again: %s", clock.round + 1, lack)
            if len(self.clients.wait(needed, self.settings.wait, who)) < needed:
                raise LostError(f"fewer than {needed} of the round's clients are left")
        else:
            raise LostError(f"round {clock.round + 1} failed {TRIES} times: {lack}")
        members = sorted(answers.given)
        losses = [answers.given[member].loss for member in members]
        uploads = self._together([answers.given[member].upload for member in members])
        return Outcome(tuple(members), uploads, losses, left_out, self._traffic)

    def declared(self, who: Sequence[int]) -> list[int]:
        """By what they said when they came."""
        return [self.counted * self.clients.known[member].samples for member in who]

    def _needed(self, who: Sequence[int]) -> int:
        """How many of a round's clients must answer."""
        return min(self.settings.minimum, len(who))

    def _played(self, members: Sequence[int], broadcast: Broadcast, needed: int) -> Answers[TrainReply]:  # noqa: ARG002
        """What clients have made in a round."""
        return self._ask("train", members, broadcast, self._read_upload)

    def _together(self, uploads: Sequence[Upload]) -> Upload:
        """What a round's clients have sent."""
        return Upload.gather(uploads)

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """What the clients that are there say of their models."""
        self._traffic = Traffic()
        there = list(self.clients.connected())
        answers = self._ask("evaluate", there, broadcast, self._read_scores)
        tested = sorted(answers.given)
        if not tested:
            raise LostError("no client has answered how good the models are")
        found: list[Evaluation] = [answers.given[member] for member in tested]
        names = [name for name in found[0].per_client if all(name in one.per_client for one in found)]
        per_client = {name: [one.per_client[name][0] for one in found] for name in names}
        told: dict[str, dict[str, list[float]]] = {}
        for one in found:
            for name, domains in one.per_domain.items():
                for domain, value in domains.items():
                    told.setdefault(name, {}).setdefault(domain, []).append(value)
        per_domain = {
            name: {domain: statistics.median(values) for domain, values in domains.items()}
            for name, domains in told.items()
        }
        diagnostic = [name for name in found[0].diagnostic if name in per_client]
        everyone = len(tested) == self.federation.total
        return Evaluation(
            per_client,
            per_domain,
            diagnostic=diagnostic,
            tested=None if everyone else tested,
            traffic=self._traffic,
        )

    def _ask(
        self,
        kind: str,
        members: Sequence[int],
        broadcast: Broadcast | None,
        read: Callable[[int, RecordDict], tuple[T, int]],
        told: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> Answers[T]:
        """Each of some clients, with what the server sends and tells it; answers and reasons by client."""
        there = self.clients.known
        clock = [self.clock.round, self.clock.rounds, list(self.clock.who), self.clock.clients, self.clock.seed]
        named = {"classes": self.federation.classes, "domains": self.clients.domains(self.federation.domains)}
        facts = self.clients.facts(clock=clock, **named)
        questions = {
            there[member].node: pack(
                {**facts, **told(member)}, None if broadcast is None else self.method.send(broadcast, member)
            )
            for member in members
        }
        number = {there[member].node: member for member in members}
        given = exchange(
            self.clients.grid,
            questions,
            kind,
            str(self.clock.round + 1),
            self.settings.deadline,
            lambda node, content: read(number[node], content),
        )
        self._traffic += given.traffic
        return Answers(
            {number[node]: value for node, value in given.given.items()},
            {number[node]: why for node, why in given.left_out.items()},
            given.traffic,
        )

    def _read_upload(self, member: int, content: RecordDict) -> tuple[TrainReply, int]:
        facts, data = unpack(content, LARGEST)
        loss = facts.get("loss")
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        if not (isinstance(loss, float) and abs(loss) < WORST):
            raise RefusedError("its loss is no usable number")
        return TrainReply(Upload.from_flat(self.schema.check(tensors_of(data))), loss), size(content)

    def _read_scores(self, member: int, content: RecordDict) -> tuple[Evaluation, int]:
        facts, _ = unpack(content, LARGEST)
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        names = [item.name for item in dataclasses.fields(Evaluation) if item.name != "traffic"]
        try:
            found = Evaluation(**{name: facts[name] for name in names})
            values = [value for some in found.per_client.values() for value in some]
            values += [value for some in found.per_domain.values() for value in some.values()]
            right = all(isinstance(value, float) and 0 <= value <= 100 for value in values)
            right &= all(len(some) == 1 for some in found.per_client.values()) and bool(values)
            right &= all(found.per_domain.values())
            right &= self.scores <= found.per_client.keys() <= SCORES and found.per_domain.keys() <= SCORES
            named = self.clients.domains(self.federation.domains)
            right &= all(domains.keys() <= set(named) for domains in found.per_domain.values())
            right &= set(found.diagnostic) <= found.per_client.keys() and (found.interval, found.tested) == ({}, None)
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise RefusedError("its accuracies are none")
        return found, size(content)


class Secure(Remote):
    """One that learns the sum of a round's uploads, and no client's own: four exchanges (trust/secagg.py)."""

    def __init__(self, here: Engine, clients: Clients, layout: Layout, scores: Collection[str]) -> None:
        super().__init__(here, clients, Schema({"numbers/masked": (torch.int64, (length(layout),))}, {}), scores)
        self.layout = layout

    def declared(self, who: Sequence[int]) -> list[int]:
        """Of the sum, which is all that there is."""
        return [sum(super().declared(who))]

    def _needed(self, who: Sequence[int]) -> int:
        return max(super()._needed(who), threshold(len(who)))

    def _played(self, members: Sequence[int], broadcast: Broadcast, needed: int) -> Answers[TrainReply]:
        """The same of every client: the round's sum as one upload, and the mean loss."""
        left_out: dict[int, str] = {}

        def enough(answers: Answers[T], done: str) -> dict[int, T]:
            left_out.update(answers.left_out)
            if len(answers.given) < needed:  # the masks stay on: this sum and that of the next attempt would tell more
                reasons = "; ".join(f"client {member}: {why}" for member, why in sorted(left_out.items()))
                raise UnmaskError(f"{len(answers.given)} clients have {done}, {needed} are needed ({reasons})")
            return answers.given

        publics = enough(self._ask("query.keys", members, None, self._read_keys), "sent keys")
        told = {"publics": spelt(publics)}
        read = partial(self._read_book, "sealed", SEALED, lambda member: publics.keys() - {member})
        sealed = enough(self._ask("query.shares", list(publics), None, read, lambda _: told), "shared their secrets")

        def sealed_for(member: int) -> dict[str, Any]:
            return {"sealed": spelt({other: boxes[member] for other, boxes in sealed.items() if other != member})}

        turns = self._ask("train.masked", list(sealed), broadcast, self._read_masked, sealed_for)
        masked = enough(turns, "sent what they add")
        there = {"there": sorted(masked)}
        read = partial(self._read_book, "told", SHARE, lambda _: sealed.keys())
        shares = self._ask("query.unmask", list(masked), None, read, lambda _: there)
        for member, why in shares.left_out.items():
            LOG.warning("round %d: client %d does not help to unmask: %s", self.clock.round + 1, member, why)
        held = {member: publics[member] for member in sealed}
        total = numbers(unmask(masked, held, shares.given, threshold(len(self.clock.who))), self.layout)
        upload = upload_of(total, len(masked))
        for why in refusals(upload, broadcast, self.declared(list(masked))).values():
            raise UnmaskError(f"the sum is of no use: {why}")
        turn = TrainReply(upload, float(total["loss"]) / len(masked))
        return Answers(dict.fromkeys(masked, turn), left_out, Traffic())

    def _together(self, uploads: Sequence[Upload]) -> Upload:
        return uploads[0]

    def _read_keys(self, member: int, content: RecordDict) -> tuple[bytes, int]:
        public = read_book({member: self._facts(member, content).get("public")}, PUBLIC)[member]
        if not usable(public):  # or those who try it would be left out, and not who sent it
            raise RefusedError("its keys are none")
        return public, size(content)

    def _read_book(
        self, name: str, each: int, whom: Callable[[int], Collection[int]], member: int, content: RecordDict
    ) -> tuple[dict[int, bytes], int]:
        book = read_book(self._facts(member, content).get(name), each)
        if book.keys() != set(whom(member)):
            raise RefusedError("it speaks of other clients than it was asked about")
        return book, size(content)

    def _read_masked(self, member: int, content: RecordDict) -> tuple[Words, int]:
        self._facts(member, content)
        _, data = unpack(content, LARGEST)
        return self.schema.check(tensors_of(data))["numbers/masked"].numpy().view(np.uint64), size(content)

    def _facts(self, member: int, content: RecordDict) -> dict[str, Any]:
        facts, _ = unpack(content, LARGEST)
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        return facts


def serve(grid: Grid, experiment: Experiment, settings: Settings) -> None:
    """A run, from its beginning or from where its folder says."""
    check(experiment)
    experiment = dataclasses.replace(experiment, checkpoint_every=1)  # clients cannot go back further
    path = Path(settings.out)
    check_out(path, experiment)
    folder = RunFolder(path)
    label = folder.network_label
    old = read_network_label(label, experiment.clients) if label.exists() else None
    clients = Clients(grid, experiment, settings, old["run"] if old else secrets.token_hex(8))
    if old:
        clients.classes, clients.brings = old["classes"], old["brings"]
    there = clients.wait(experiment.clients, settings.wait, range(experiment.clients))
    if len(there) < settings.minimum:
        others = clients.absent(set(range(experiment.clients)) - set(there))
        reasons = [f"client {number}: {why}" for number, why in sorted(others.items()) if why != AWAY]
        lack = f"{len(there)} of at least {settings.minimum} clients came within {settings.wait:g} s"
        raise LostError("; ".join([lack, *reasons]))
    said = old or _label(clients)
    if too_large(said):
        named = {number: (len(client.classes), list(client.shape)) for number, client in sorted(clients.known.items())}
        raise UserError(
            "classes and images", named, "together they are too many: leave out who names what it should not"
        )
    clients.classes, clients.brings = said["classes"], said["brings"]
    run = _prepared(experiment, clients, said)
    if not old:
        make_folder(path, label.name, json.dumps(said) + "\n")
    if not (path / "config.yaml").exists():
        write_text(path / "config.yaml", run.experiment.to_yaml())
    if old:
        run.restore(folder.claim())
    run.play(folder, Progress())


def check(experiment: Experiment) -> None:
    """Refuse what is unknown, or cannot be done over a network."""
    method = build_method(experiment.method, experiment.params)
    for model in experiment.model.split(","):
        factory_of(model)
    for dataset in experiment.dataset.split("+"):
        check_name(dataset)
    check_split(experiment.split)
    if isinstance(method, PublicExchange):
        raise UserError("--method", experiment.method, "over a network there is no exchange within a round")
    for name in ("drift", "encoder", "start", "novel", "attack", "privacy"):
        if getattr(experiment, name) != getattr(Experiment, name):
            raise UserError(f"--{name}", getattr(experiment, name), "it is not for runs over a network")
    if experiment.secure:
        summed(method, "--secure")
        if experiment.defence != "none":
            raise UserError("--defence", experiment.defence, "with --secure the server sees nobody's own upload")
        if (number := len(participants(experiment, experiment.clients, 0))) < 2:
            raise UserError("--secure", True, f"a sum over {number} client hides nothing: raise --participation")


def _label(clients: Clients) -> NetworkLabel:
    """What those who are there when a run begins say of their images: it holds for the run, whoever comes or leaves."""
    known = [client for _, client in sorted(clients.known.items())]
    return {
        "run": clients.run,
        "brings": known[0].brings,
        "classes": list(dict.fromkeys(name for client in known for name in client.classes)),
        "domains": clients.domains(()),
        "shapes": [list(clients.known.get(number, known[0]).shape) for number in range(clients.experiment.clients)],
    }


def _prepared(experiment: Experiment, clients: Clients, said: NetworkLabel) -> Run:
    """A run whose clients stand for those that are elsewhere."""
    stand_ins = [_noise(shape) for shape in said["shapes"]]
    local = dataclasses.replace(experiment, engine="sequential", width=None, device="cpu", secure=False)
    federation = Federation(tuple(stand_ins), tuple(said["classes"]), tuple(said["domains"]))
    example = Run(local, federation=federation)
    clock = Clock(0, experiment.rounds, (0,), 1, experiment.seed)
    upload = example.engine.round([0], example.broadcast, clock).uploads
    scores = example.evaluator(example.broadcast).per_client
    run = Run(local, federation=federation)
    if experiment.secure:
        layout = layout_of(added(upload, 0.0, summed(run.method, "--secure")))
        remote: Remote = Secure(run.engine, clients, layout, scores)
    else:
        sent = run.method.upload(made_up(run.engine.groups[0], classes=1))
        means = all(found.vectors.shape[-2] == 1 for found in sent.prototypes.values())
        remote = Remote(run.engine, clients, Schema.of(upload.client(0), slots=1 if means else SLOTS), scores)
    run.engine, run.evaluator = remote, remote.evaluate
    run.experiment = experiment
    return run


def _noise(shape: Sequence[int]) -> Client:
    """A client with two meaningless images."""
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8, generator=generator(0, "stand-in"))
    samples = Samples.of(images, torch.zeros(2, dtype=torch.int64))
    return Client.of(samples, samples)


def server_app(folder: Path) -> ServerApp:
    """The ServerApp of a directory that `protofed flower-app` wrote."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        try:
            serve(grid, Experiment.from_mapping(read_yaml(folder / "experiment.yaml")), Settings.of(context.run_config))
        except (UserError, DivergedError) as error:
            raise HopelessError(f"{HOPELESS}{error}") from error

    return app
