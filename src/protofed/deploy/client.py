"""The client's side: a turn, or a test, for every message. What a client holds never leaves it; an Upload does.

Nothing that a server sends is run: methods, models and data are those that are installed here, and what is asked is
held against what the owner allows before anything is done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from protofed.data import Federation, check_name, load
from protofed.data.build import federation_of
from protofed.data.encodings import Encoding
from protofed.data.splits import check_split
from protofed.deploy.client_memory import PUBLIC as MODEL
from protofed.deploy.client_memory import SECRETS, ClientMemory, FolderMemory, last_round, recall, remember
from protofed.deploy.events import Events
from protofed.deploy.layouts import with_tokens
from protofed.deploy.ledger import SUMS, TODAY, RunLedger, SumsGiven, Today, check_room, forget_old
from protofed.deploy.owner import PARTS, Owner, refuse
from protofed.deploy.received import Received
from protofed.deploy.signatories import signatory_of
from protofed.deploy.spoken import looked_up, understood
from protofed.deploy.wire import (
    FAILED,
    LARGEST,
    OLDEST,
    PROTOCOL,
    REFUSED,
    Packet,
    numbered,
    pack,
    part_of,
    read_book,
    respoken,
    spelt,
    unpack,
)
from protofed.engines.base import Engine
from protofed.engines.batches import sizes_that_do, smallest_batch
from protofed.engines.public_phase import PublicPhase
from protofed.errors import RefusedError, UserError
from protofed.evaluation.names import split_name
from protofed.experiment import Experiment
from protofed.internal.plugins import is_code
from protofed.messages import Broadcast, Upload, tensors_in
from protofed.methods import build_method
from protofed.methods.base import Clock
from protofed.models import factory_of
from protofed.runs.run import Run, new_run
from protofed.server.public_exchange import exchange_of
from protofed.trust.dp_mechanisms import clipped_and_noised
from protofed.trust.integer_noise import noised_row, system_gaussian
from protofed.trust.screening import Schema, tensors_of
from protofed.trust.secagg import PUBLIC, SEALED, Member, added, integers
from protofed.trust.signatures import SIGNATURE
from protofed.trust.summation import summed

LOG = logging.getLogger("protofed.client")
PATH = re.compile(r"(?<![\w.~])~?/[^\s'\",;:]+")
"""A file or folder of the owner's."""
LONGEST = 300
"""Characters of a line about what came from elsewhere."""
UNKNOWN = -1
"""In place of a round: the model that the run has now is that of none."""
UNUSABLE = "its data cannot be used any more: its log says why"
NOTHING = [-1, -1]
"""No public batch was learned or looked at."""
NOT_CLIPPED = "an exchange on public images, which is neither clipped nor noised"
"""What a client whose owner clips refuses."""


class Failed(NamedTuple):
    """An answer that is none. Of an error that may tell of the data, the reason is its type alone.

    What a user can mend is said in words, for it is about what was asked. Of data that cannot be read only this
    client's log tells.
    """

    code: int
    reason: str


@dataclass(frozen=True)
class Asked:
    """A message whose experiment the owner allows."""

    facts: Mapping[str, Any]
    data: bytes  # an encoded Broadcast
    experiment: Experiment
    memory: ClientMemory  # what is kept of this run
    ledger: RunLedger

    @property
    def clock(self) -> Clock:
        """When it is, and who takes part; all else is the experiment's to say."""
        number, who = self.facts["clock"]
        if type(number) is not int or not 0 <= number < self.experiment.rounds:
            raise RefusedError(f"round {number!r}: the experiment has {self.experiment.rounds}")
        clients, seed = self.experiment.number_of_clients, self.experiment.seed
        return Clock(number, self.experiment.rounds, tuple(who), clients, seed)


class Arrived(NamedTuple):
    """A client at the beginning of a turn, and what it was sent."""

    run: Run
    received: Broadcast
    clock: Clock


class WarmClient:
    """One client, whose data and models stay here from one message to the next.

    Args:
        owner: what it may be asked for.
        events: where it is recorded what was asked; nowhere, unless given.
    """

    def __init__(self, owner: Owner, events: Events | None = None) -> None:
        self.owner, self.events = owner, events
        self._sent: list[str] = []  # what leaves with the answer that is being made
        self._here: tuple[str, Federation] | None = None  # the run that it was loaded for, and its data
        self._run: tuple[object, Run] | None = None  # what it was made for, and the run
        self._after: int | None = None  # the round after which the run's model is

    def answer(self, kind: str, packet: Packet, memory: ClientMemory | None = None) -> Packet | Failed:
        """The answer to a message; what is kept of its run is in `memory`, or else in the owner's folder.

        Args:
            kind: what is asked, one of HANDLERS.
            packet: the message.
            memory: what is kept of the run, where that is not a folder.

        Returns:
            The answer, or why there is none.
        """
        facts: Mapping[str, Any] = {}
        self._sent, began = [], time.monotonic()
        try:
            refuse(self.owner.size_objections(packet.size()))
            facts, data = unpack(packet, LARGEST)
            found = self._allowed(kind, facts, data, memory)
            refuse(self.owner.size_objections(found.size()))
            self._count(sent=found.size())
        except RefusedError as error:
            why = plain(str(error))
            self._record(kind, facts, packet, refused=why)
            return Failed(REFUSED, why)
        except UserError as error:
            why = plain(PATH.sub("...", str(error)))
            LOG.error("%s: %s", plain(kind), error)
            self._record(kind, facts, packet, failed=why)
            return Failed(FAILED, why)
        except Exception as error:  # whatever it is, it may tell of the data
            LOG.exception("%s", plain(kind))
            self._record(kind, facts, packet, failed=type(error).__name__)
            return Failed(FAILED, type(error).__name__)
        self._record(kind, facts, packet, bytes_out=found.size(), seconds=round(time.monotonic() - began, 3))
        return found

    def _allowed(self, kind: str, facts: Mapping[str, Any], data: bytes, memory: ClientMemory | None) -> Packet:
        if kind not in HANDLERS:
            raise RefusedError(f"there is no {kind}")
        experiment = understood(facts)
        self.owner.check(experiment)
        looked_up(facts, lambda: check_names(experiment, self.owner))
        if memory is None:
            memory = self._folder(facts["run"])
        asked = Asked(facts, data, experiment, memory, RunLedger.of(memory, experiment))
        answer = HANDLERS[kind](self, asked)
        return answer if facts["protocol"] == PROTOCOL else respoken(answer, facts["protocol"])

    def arrive(self, asked: Asked, after: bool = False) -> Arrived:
        """This client as it is before a round, or after it, and what it was sent."""
        clock = asked.clock
        run = self.run(asked)
        number = last_round(asked.memory, clock.round + after)
        if number != self._after:  # or it failed on the way
            if number is None:
                self._run = None  # a run at its beginning
                run = self.run(asked)
            else:
                recall(asked.memory, run.engine.groups[0], number)
            self._after = number
        (group,) = run.engine.groups
        flat, largest = tensors_of(asked.data), int(self.owner.megabytes * 1e6)
        schema = Schema.of_broadcast(flat, group.own.initial, len(run.federation.classes), group.feature_size, largest)
        received = Broadcast.from_flat(schema.check(flat))
        if self.owner.memory is not None:  # a client with a folder, whose owner may export its model
            classes, domains = (list(asked.facts[name]) for name in ("classes", "domains"))
            rounds, own, tokens = clock.round + after, self.owner.data, asked.facts.get("tokens", 0)
            Received(asked.experiment, classes, domains, rounds, asked.data, own, tokens).keep(asked.memory)
        return Arrived(run, received, clock)

    def run(self, asked: Asked) -> Run:
        """The run, in which this client is the only one: the one of the last message, if it is that."""
        tokens = asked.facts.get("tokens", 0)  # which older servers do not say
        named = (asked.facts["run"], asked.facts["classes"], asked.facts["domains"], tokens)
        if self._run is None or self._run[0] != named:
            asked.ledger.pin_classes(asked.memory, asked.facts["classes"])
            here = self.federation(asked.facts["run"], asked.experiment)
            here = with_tokens(here.named(asked.facts["classes"], asked.facts["domains"]), tokens)
            run = new_run(experiment_here(asked.experiment, self.owner), federation=here)
            refuse(turn_objections(self.owner, run.engine))
            self._run, self._after = (named, run), None
        return self._run[1]

    def federation(self, run: str, experiment: Experiment) -> Federation:
        """This client's part: all of its own data, or its share of a dataset that the experiment divides."""
        if self._here is None or self._here[0] != run:
            try:
                found = federation_here(experiment, self.owner)
            except UserError:
                self._check_data()
                raise
            refuse(self.owner.sample_objections(len(found.clients[0].train), experiment))
            self._here = run, found
        return self._here[1]

    def _check_data(self) -> None:
        """Whose own data cannot be used whatever is asked tells the server no more than this."""
        try:
            check_data(self.owner)
        except UserError as error:
            LOG.error("its data: %s", error)
            raise RefusedError(UNUSABLE) from None

    def keep(self, asked: Asked, arrived: Arrived) -> None:
        """Keep the model after a turn, here and in memory."""
        remember(asked.memory, arrived.run.engine.groups[0], arrived.clock.round)
        self._after = arrived.clock.round

    def count_turn(self, asked: Asked) -> None:
        """Count one, if there is one left."""
        asked.ledger.count("turn", asked.memory, self.owner)
        self._count(turns=1)

    def tested(self, asked: Asked, arrived: Arrived) -> dict[str, Any] | None:
        """Accuracies of this client's model, and of the one it was sent; nothing where they may not leave.

        Where its owner has what leaves noised, they may not: no noise is on them.
        Metrics leave beside them, where they may: of some classes they tell more than an accuracy does.
        """
        if "accuracies" not in self.owner.send or self.owner.noise:
            return None
        asked.ledger.count("test", asked.memory, self.owner)
        self._count(tests=1)
        with arrived.run.at_work():
            scores = asdict(arrived.run.clients.evaluate(arrived.received))
        del scores["traffic"]  # that is the server's to count
        if "metrics" not in self.owner.send:
            scores = {name: _accuracies(some) for name, some in scores.items()}
        self._sent += [
            "accuracies",
            *(["metrics"] if any(split_name(name)[1] for name in scores["per_client"]) else []),
        ]
        return scores

    def trained(self, arrived: Arrived) -> tuple[Upload, float]:
        """What a turn makes, as it may leave, and its loss; 0 where what leaves is noised, which a loss is not."""
        self._after = UNKNOWN  # until it is kept: a turn that fails half way has changed the model
        with arrived.run.at_work():
            outcome = arrived.run.clients.round([self.owner.id], arrived.received, arrived.clock)
        loss = 0.0 if self.owner.noise else outcome.losses[0]
        return self.guarded(outcome.uploads, arrived.received), loss

    def sums(self) -> SumsGiven | None:
        """Of which sums this client was a part, in all runs; a simulation protects nobody from itself."""
        return None if self.owner.memory is None else SumsGiven(Path(self.owner.memory) / SUMS)

    def guarded(self, upload: Upload, received: Broadcast) -> Upload:
        """What may leave of what a turn has made."""
        self.check_parts(upload)
        if self.owner.clip is None:
            return upload
        return clipped_and_noised(upload, received, self.owner.clip, self.owner.noise, system_gaussian)

    def check_parts(self, upload: Upload) -> None:
        """Refuse to send what may not be sent; the rest is what leaves."""
        parts = [part for part in PARTS if getattr(upload, part)]
        refuse(self.owner.part_objections(parts))
        self._sent += parts

    def forget(self) -> None:
        """Delete what is kept of old runs, and record which."""
        for old in [] if self.owner.memory is None else forget_old(Path(self.owner.memory), self.owner):
            if self.events is not None:
                self.events.write(kind="forgotten", run=old)

    def _folder(self, run: Any) -> FolderMemory:
        """What is kept of a run, whose name becomes that of a folder."""
        if not (isinstance(run, str) and run.isalnum() and run.isascii() and len(run) <= 64):
            raise RefusedError("the run has no plain name")
        assert self.owner.memory is not None  # client.yaml has one
        folder = Path(self.owner.memory)
        if not (folder / run).is_dir():
            self.forget()
        check_room(folder, run, self.owner)
        return FolderMemory(folder / run)

    def _count(self, **what: int) -> None:
        if self.owner.memory is not None:
            path = Path(self.owner.memory) / TODAY
            Today.read(path).count(path, self.owner, **what)

    def _record(self, kind: str, facts: Mapping[str, Any], packet: Packet, **more: Any) -> None:
        if self.events is not None:
            clock, experiment = facts.get("clock"), facts.get("experiment")
            number = clock[0] + 1 if isinstance(clock, list) and clock and isinstance(clock[0], int) else None
            method = asked_of(experiment, "method") if isinstance(experiment, dict) else None
            named = {"run": plain(str(facts.get("run"))), "method": plain(str(method)), "round": number}
            more["bytes_in"] = packet.size()
            if self._sent and "bytes_out" in more:
                more |= self._sent_with(experiment)
            write = self.events.write if "sent" in more else self.events.write_some
            write(kind=plain(kind), client=self.owner.id, **named, **more)

    def _sent_with(self, experiment: Any) -> dict[str, Any]:
        """What has left with an answer that is none of a question about the run, and what hides a sample in it."""
        assert self._here is not None  # what has left was made of it
        found = {"sent": list(dict.fromkeys(self._sent)), "samples": len(self._here[1].clients[0].train)}
        asked = {name: asked_of(experiment, name) for name in ("min_count", "secure")}
        return found | asked | {"clip": self.owner.clip, "noise": self.owner.noise or None}


def asked_of(experiment: Mapping[str, Any], name: str) -> Any:
    """An option of an experiment as a message names it, which leaves out what is at its default."""
    return experiment.get(name, getattr(Experiment, name))


def _accuracies(some: Any) -> Any:
    """What a test says under some heading, without metrics."""
    if isinstance(some, dict):
        return {name: values for name, values in some.items() if not split_name(name)[1]}
    return [name for name in some if not split_name(name)[1]] if isinstance(some, list) else some


def plain(text: str) -> str:
    """What came from elsewhere as a line that can be written anywhere."""
    return "".join(one if one.isprintable() and one.isascii() else "?" for one in text[:LONGEST])


def check_names(experiment: Experiment, owner: Owner) -> None:
    """Refuse names of what is not installed here; an owner's own code is loaded where it is needed.

    Raises:
        UserError: there is no such method, parameter, model, dataset or split.
    """
    if not is_code(experiment.method):
        build_method(experiment.method, experiment.params)
    for model in experiment.model.split(","):
        if not is_code(model):
            factory_of(model)
    for dataset in experiment.datasets if owner.data is None else ():
        check_name(dataset)
    if owner.data is None or ":" not in owner.data:
        check_split(experiment.split)


def turn_objections(owner: Owner, engine: Engine) -> list[str]:
    """To a turn that is too long, or that takes a step on too few samples: what a step changes would show them."""
    objections = owner.epoch_objections(sum(phase.epochs for phase in engine.method.phases(engine.experiment.epochs)))
    (samples,), asked, least = engine.groups[0].sizes, engine.experiment.batch_size, owner.min_batch
    smallest = smallest_batch(samples, asked)
    if smallest >= least or not engine.takes_every_batch(samples):
        return objections
    which = f"batch_size {asked}: the last batch of an epoch would have {smallest} samples, {least} or more are allowed"
    better = " or ".join(map(str, sizes_that_do(samples, asked, least)))
    return [*objections, f"{which}; {better} would do" if better else which]


def experiment_here(experiment: Experiment, owner: Owner) -> Experiment:
    """The experiment as this client plays it: by its owner's machine, files and public images.

    What is hidden in the sum over clients is not its engine's business.
    """
    machine: dict[str, Any] = {"device": owner.device, "threads": owner.threads, "engine": "sequential", "width": None}
    machine |= {"secure": False, "async_": None}  # how the server adds up, and when
    data_dir = experiment.data_dir if owner.simulated else owner.data_dir
    public = owner.public or experiment.public
    return replace(experiment.without_privacy(), **machine, data_dir=data_dir, public=public)


def federation_here(experiment: Experiment, owner: Owner) -> Federation:
    """The part of one client: all of its own data, or its share of a dataset that the experiment divides."""
    columns: dict[str, Any] = dict(owner.columns)
    mine = replace(experiment_here(experiment, owner), dataset=owner.data or experiment.dataset, **columns)
    if owner.data is not None and ":" in owner.data:
        whole = federation_of(replace(mine, split="iid", clients=1, clients_per_domain=None), whole=False)
        clients = whole.clients
    else:
        whole = federation_of(mine)
        if owner.id not in whole.members:
            raise RefusedError(
                f"the experiment divides its dataset among clients 0 to {len(whole.clients) - 1}: who joins later "
                "needs data of its own (--data)"
            )
        clients = (whole.members[owner.id],)
    sizes = None if owner.data is not None else whole.class_sizes
    size = max(experiment.number_of_clients, owner.id + 1)  # one that joined after the run began has a number beyond
    return replace(whole, clients=clients, numbers=(owner.id,), size=size, sizes=sizes)


def check_data(owner: Owner) -> None:
    """Refuse data of a client's own that no experiment could use."""
    if owner.data is not None and ":" in owner.data:
        federation_here(Experiment(), owner)
    elif owner.data is not None:
        load(owner.data, None if owner.data_dir is None else Path(owner.data_dir))


def hello(client: WarmClient, asked: Asked) -> Packet:
    """Who this is, whether it brings data, how many samples it trains on, and what samples and classes look like."""
    here = client.federation(asked.facts["run"], asked.experiment)
    train, prepared = here.clients[0].train, here.clients[0].preparation
    named = {"classes": here.classes, "domains": here.domains}
    about = {"brings": client.owner.data is not None, "samples": len(train), "shape": list(train.x.shape[1:])}
    about |= {"tokens": prepared.tokens, "masked": prepared.masked, "protocols": [OLDEST, PROTOCOL]}
    about |= {"layout": "" if here.encoding is None else layout_digest(here.encoding)}
    return pack({"id": client.owner.id, **about, **named})


def layout_digest(encoding: Encoding) -> str:
    """What shows whether two clients' columns, channels or words are the same, but not what they are."""
    return hashlib.sha256(json.dumps(encoding.layout()).encode()).hexdigest()


def train(client: WarmClient, asked: Asked) -> Packet:
    """A turn; before it, if the server asks, a test of the models after the round before."""
    if asked.experiment.secure:
        raise RefusedError("an upload without masks")
    client.count_turn(asked)
    arrived = client.arrive(asked)
    scores = client.tested(asked, arrived) if asked.facts.get("test") else None
    upload, loss = client.trained(arrived)
    loss = 0.0 if asked.experiment.hides_clients else loss  # the server noises what is uploaded, and no loss
    answer = pack({"id": client.owner.id, "loss": loss, "scores": scores}, upload.client(0))
    client.keep(asked, arrived)
    return answer


def evaluate(client: WarmClient, asked: Asked) -> Packet:
    """Accuracies of this client's model, and of the server's, on its own test set."""
    arrived = client.arrive(asked, after=True)
    if asked.memory.note(SECRETS):
        member = Member.decode(asked.memory.note(SECRETS))
        member.end()
        asked.memory.keep(SECRETS, member.encode())
    scores = client.tested(asked, arrived)
    if scores is None:
        raise RefusedError("accuracies may not be sent")
    return pack({"id": client.owner.id, "scores": scores})


def public_images(client: WarmClient, asked: Asked) -> Packet:
    """Before an exchange on public images: how many this client has, and which."""
    images = _public(client.run(asked))
    digest = hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()
    return pack({"id": client.owner.id, "images": len(images), "digest": digest})


def public_step(client: WarmClient, asked: Asked) -> Packet:
    """A part of an exchange on public images: learn from the server's answers, then look at the next batches.

    Where no batch is asked for, the model after all of them is sent.
    """
    if asked.experiment.secure:  # what is sent here has no masks
        raise RefusedError("an upload without masks")
    if client.owner.clip is not None:
        raise RefusedError(NOT_CLIPPED)
    first, learned, wanted = (asked.facts.get(name, []) for name in ("first", "learned", "wanted"))
    if first:
        client.count_turn(asked)
    run, received, clock = client.arrive(asked)
    exchange = exchange_of(run.method)
    if exchange is None:
        raise RefusedError(f"{run.method.name} exchanges nothing on public images")
    with run.at_work():
        phase = PublicPhase(run.engine, exchange, _public(run), [client.owner.id], received, clock)
        if not (_are_batches(learned, phase.number_of_batches) and _are_batches(wanted, phase.number_of_batches)):
            raise RefusedError("there are no such public batches")
        done = NOTHING
        if not first:
            phase.models[0], done = _recalled(asked.memory, clock)
        if (learned[:1] <= done[:1] and learned) or (wanted[:1] <= done[1:] and wanted):
            raise RefusedError("these public batches again")
        for number in learned:
            phase.learn(number, Broadcast(numbers=part_of(received.numbers, number)))
        if wanted:
            upload = Upload(numbers=numbered({number: phase.outputs(number).client(0).numbers for number in wanted}))
        else:
            upload = client.guarded(phase.weights(), received).client(0)
    client.check_parts(upload)
    done = [max([*learned, done[0]]), max([*wanted, done[1]])]
    state = {"round": torch.tensor(clock.round), "done": torch.tensor(done), **phase.models[0]}
    asked.memory.keep(MODEL, save(state) if wanted else b"")
    return pack({"id": client.owner.id}, upload)


def _recalled(memory: ClientMemory, clock: Clock) -> tuple[dict[str, Tensor], list[int]]:
    """The model after the last part of this round's exchange, and the last batches it has learned and looked at."""
    state = tensors_in(memory.note(MODEL)) if memory.note(MODEL) else {}
    if not state or int(state.pop("round")) != clock.round:
        raise RefusedError("it has not begun this exchange")
    return state, state.pop("done").tolist()


def _are_batches(numbers: Any, most: int) -> bool:
    """Whether they are numbers of batches, each there once: a server must not have a client step for hours."""
    if not (isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)):
        return False
    return len(set(numbers)) == len(numbers) and all(0 <= number < most for number in numbers)


def _public(run: Run) -> Tensor:
    if run.engine.public is None:
        raise RefusedError("there are no public images")
    return run.engine.public


def private_seed() -> int:
    """Of the batches and dropout of one turn; it is neither kept nor told, and no other turn has it."""
    return secrets.randbits(63)


@contextmanager
def private_randomness(run: Run) -> Iterator[None]:
    """Train by randomness that nobody else knows: or two sums over different clients would differ by what one adds."""
    usual = run.engine.experiment
    run.engine.experiment = replace(usual, seed=private_seed())
    try:
        yield
    finally:
        run.engine.experiment = usual


def beginning(arrived: Arrived) -> str:
    """A digest of what a turn begins with: the received weights and prototypes, and the client's own other weights."""
    own = {f"weights/{name}": tensor[0] for name, tensor in arrived.run.engine.groups[0].own.take([0]).items()}
    return hashlib.sha256(
        save({name: t.contiguous() for name, t in (own | arrived.received.flat()).items()})
    ).hexdigest()


def keys(client: WarmClient, asked: Asked) -> Packet:
    """Secure aggregation, step 1: new keys, signed."""
    clock, memory = asked.clock, asked.memory
    before = Member.decode(memory.note(SECRETS)) if memory.note(SECRETS) else None
    member = Member.begin(client.owner.id, clock.who, clock.round, before, asked.facts["run"])
    if asked.experiment.hides_clients and clock.round in member.summed:
        raise RefusedError(f"round {clock.round + 1} has been summed: a second sum costs more than was counted")
    public = member.keys()
    signature = signatory_of(client.owner).sign(member.says_keys(client.owner.id, public))
    answer = pack({"id": client.owner.id, "public": public.hex(), "signature": signature.hex()})
    memory.keep(SECRETS, member.encode())
    return answer


def shares(client: WarmClient, asked: Asked) -> Packet:
    """Step 2: shares of this client's secrets, sealed for the others."""
    member = _member(asked)
    publics, signatures = (
        read_book(asked.facts.get(name), size) for name, size in (("publics", PUBLIC), ("signatures", SIGNATURE))
    )
    statements = {number: member.says_keys(number, public) for number, public in publics.items()}
    signatory_of(client.owner, asked.facts.get("certificates")).check(statements, signatures)
    sealed = member.share(publics)
    asked.memory.keep(SECRETS, member.encode())
    return pack({"id": client.owner.id, "sealed": spelt(sealed)})


def masked(client: WarmClient, asked: Asked) -> Packet:
    """Step 3: a turn, of which the server learns what it adds to the sum of all, and this under masks."""
    client.count_turn(asked)
    arrived = client.arrive(asked)
    member = _member(asked)
    member.receive(read_book(asked.facts.get("sealed"), SEALED))
    member.beginning = beginning(arrived)
    asked.memory.keep(SECRETS, member.encode())  # now, so that the masks serve one turn, whatever is asked meanwhile
    scores = client.tested(asked, arrived) if asked.facts.get("test") else None
    with private_randomness(arrived.run):
        upload, loss = client.trained(arrived)
    if asked.experiment.hides_clients:
        try:
            row = noised_row(upload, arrived.received, asked.experiment, len(member.who))
        except UserError as error:  # of the server's clip and noise; the reason tells nothing of the data
            raise RefusedError(str(error)) from None
    else:
        row = integers(added(upload, loss, summed(arrived.run.method, "--secure")), len(member.who))
    upload = Upload(numbers={"masked": torch.from_numpy(member.mask(row).view(np.int64))})
    answer = pack({"id": client.owner.id, "scores": scores}, upload)
    asked.memory.keep(SECRETS, member.encode())
    client.keep(asked, arrived)
    return answer


def agree(client: WarmClient, asked: Asked) -> Packet:
    """Step 4: sign whose sum is to be unmasked, if it is one that this client may be a part of."""
    member = _member(asked)
    member.agree(asked.facts["there"])
    if (sums := client.sums()) is not None:
        sums.check(member.beginning, member.agreed)
    signature = signatory_of(client.owner).sign(member.says_set())
    asked.memory.keep(SECRETS, member.encode())
    return pack({"id": client.owner.id, "signature": signature.hex()})


def unmask(client: WarmClient, asked: Asked) -> Packet:
    """Step 5: a share of one secret of each client, by which the masks of the sum come off."""
    member = _member(asked)
    signatures = read_book(asked.facts.get("signatures"), SIGNATURE)
    signatory = signatory_of(client.owner, asked.facts.get("certificates"))
    signatory.check(dict.fromkeys(signatures, member.says_set()), signatures)
    told = member.reveal(signatures)
    if (sums := client.sums()) is not None:
        sums.give(member.beginning, member.agreed)
    asked.memory.keep(SECRETS, member.encode())
    return pack({"id": client.owner.id, "told": spelt(told)})


def _member(asked: Asked) -> Member:
    """This client's side of the round's secure aggregation, as it was after the last step."""
    member = Member.decode(asked.memory.note(SECRETS)) if asked.memory.note(SECRETS) else None
    if member is None or member.round != asked.clock.round:
        raise RefusedError("it has no keys for this round")
    return member


HANDLERS: dict[str, Callable[[WarmClient, Asked], Packet]] = {
    "query.hello": hello,
    "train": train,
    "evaluate": evaluate,
    "query.public": public_images,
    "train.public": public_step,
    "query.keys": keys,
    "query.shares": shares,
    "train.masked": masked,
    "query.agree": agree,
    "query.unmask": unmask,
}
"""What a client does, by the kind of a message."""
