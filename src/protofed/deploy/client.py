"""The client's side: a turn, or a test, for every message. What a client holds never leaves it; an Upload does."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save
from torch import Tensor

from protofed.data import Federation
from protofed.data.build import federation_of
from protofed.deploy.client_memory import PUBLIC as MODEL
from protofed.deploy.client_memory import SECRETS, ClientMemory, FolderMemory, StateMemory, recall, remember
from protofed.deploy.owner import PARTS, Says
from protofed.deploy.processes import SIMULATION
from protofed.deploy.wire import numbered, pack, part_of, read_book, size, spelt, unpack
from protofed.engines.public_phase import PublicPhase
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload, tensors_in
from protofed.methods.base import Clock
from protofed.runs.process import process_settings
from protofed.runs.run import Run, new_run
from protofed.server.public_exchange import exchange_of
from protofed.trust.screening import RefusedError, Schema, tensors_of
from protofed.trust.secagg import PUBLIC, SEALED, Member, added, integers
from protofed.trust.summation import summed

REFUSED, FAILED = 101, 102
"""Codes of an error reply: the client's owner does not allow it; something went wrong."""


@dataclass(frozen=True)
class Owner(Says):
    """What the owner of a client says, held against what is asked of it."""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Owner:
        """From a node's configuration: the path of a client.yaml, or, in a simulation, a number."""
        if "client" not in node:
            return cls(int(node["partition-id"]), threads=1)
        return cls.read(Path(str(node["client"])), str(node["data"]) if "data" in node else None)

    def check(self, experiment: Experiment, incoming: int) -> None:
        """Refuse what is not allowed."""
        if self.methods is not None and experiment.method not in self.methods:
            raise RefusedError(f"method {experiment.method}")
        for named in (experiment.method, *experiment.model.split(",")):
            if ":" in named and named not in (self.methods or ()) and SIMULATION not in os.environ:
                raise RefusedError(f"the code of {named}")  # a file of this machine, named by the server
        if self.secure == "required" and not experiment.secure:
            raise RefusedError("no secure aggregation")
        if experiment.rounds > self.rounds:
            raise RefusedError(f"{experiment.rounds} rounds")
        self.check_size(incoming)

    def check_size(self, number: int) -> None:
        """Refuse messages that are too large, in or out."""
        if number > self.megabytes * 1e6:
            raise RefusedError(f"{number / 1e6:.1f} MB")

    def check_upload(self, upload: Upload) -> None:
        """Refuse to send what may not be sent."""
        for part in PARTS:
            if getattr(upload, part) and part not in self.send:
                raise RefusedError(f"{part} may not be sent")


def federation_here(experiment: Experiment, owner: Owner) -> Federation:
    """This client's part: all of its own data, or its share of a dataset that the experiment divides."""
    given = owner.data or experiment.dataset
    mine = replace(experiment, dataset=given, data_dir=owner.data_dir or experiment.data_dir)
    if owner.data is not None and ":" in owner.data:
        whole = federation_of(replace(mine, split="iid", clients=1))
        clients = whole.clients
    else:
        whole = federation_of(mine)
        if owner.id not in whole.members:
            raise UserError("id", owner.id, f"the experiment has {len(whole.clients)} clients, from 0")
        clients = (whole.members[owner.id],)
    return replace(whole, clients=clients, numbers=(owner.id,), size=experiment.clients)


class Handler(Protocol):
    """Makes an answer of a message."""

    def __call__(self, facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict: ...


def hello(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:  # noqa: ARG001
    """Who this is, whether it brings data, how many samples it trains on, and what images and classes look like."""
    experiment = Experiment.from_mapping(facts["experiment"])
    owner.check(experiment, len(data))
    here = federation_here(experiment, owner)
    train = here.clients[0].train
    named = {"classes": here.classes, "domains": here.domains}
    about = {"brings": owner.data is not None, "samples": len(train), "shape": list(train.images.shape[1:])}
    return pack({"id": owner.id, **about, **named})


def train(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """A turn."""
    if _asked(facts, data, owner)[0].secure:
        raise RefusedError("an upload without masks")
    run, received, clock = _arrive(facts, data, owner, memory)
    with process_settings(run.experiment):
        outcome = run.clients.round([owner.id], received, clock)
    upload, loss = outcome.uploads.client(0), outcome.losses[0]
    owner.check_upload(upload)
    answer = pack({"id": owner.id, "loss": loss}, upload)
    owner.check_size(size(answer))
    remember(memory, run.engine.groups[0], clock.round)
    return answer


def evaluate(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Accuracies of this client's model, and of the server's, on its own test set."""
    run, received, _ = _arrive(facts, data, owner, memory, after=True)
    if memory.note(SECRETS):
        member = Member.decode(memory.note(SECRETS))
        member.end()
        memory.keep(SECRETS, member.encode())
    with process_settings(run.experiment):
        scores = asdict(run.clients.evaluate(received))
    del scores["traffic"]  # that is the server's to count
    return pack({"id": owner.id, **scores})


def public_images(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Before an exchange on public images: how many this client has, and which."""
    run, _, _ = _arrive(facts, data, owner, memory)
    images = _public(run)
    digest = hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()
    return pack({"id": owner.id, "images": len(images), "digest": digest})


def public_step(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """A part of an exchange on public images: learn from the server's answers, then look at the next batches.

    Where no batch is asked for, the model after all of them is sent.
    """
    if _asked(facts, data, owner)[0].secure:  # what is sent here has no masks
        raise RefusedError("an upload without masks")
    run, received, clock = _arrive(facts, data, owner, memory)
    exchange = exchange_of(run.method)
    if exchange is None:
        raise RefusedError(f"{run.method.name} exchanges nothing on public images")
    with process_settings(run.experiment):
        phase = PublicPhase(run.engine, exchange, _public(run), [owner.id], received, clock)
        first, learned, wanted = facts.get("first"), facts.get("learned", []), facts.get("wanted", [])
        if not (_are_batches(learned, phase.number_of_batches) and _are_batches(wanted, phase.number_of_batches)):
            raise RefusedError("there are no such public batches")
        if not first:
            phase.models = [_recalled(memory, clock)]
        for number in learned:
            phase.learn(number, Broadcast(numbers=part_of(received.numbers, number)))
        if wanted:
            upload = Upload(numbers=numbered({number: phase.outputs(number).client(0).numbers for number in wanted}))
        else:
            upload = phase.weights().client(0)
    owner.check_upload(upload)
    answer = pack({"id": owner.id}, upload)
    owner.check_size(size(answer))
    memory.keep(MODEL, save({"round": torch.tensor(clock.round), **phase.models[0]}) if wanted else b"")
    return answer


def _recalled(memory: ClientMemory, clock: Clock) -> dict[str, Tensor]:
    """The model as it was after the last part of this round's exchange."""
    state = tensors_in(memory.note(MODEL)) if memory.note(MODEL) else {}
    if not state or int(state.pop("round")) != clock.round:
        raise RefusedError("it has not begun this exchange")
    return state


def _are_batches(numbers: Any, most: int) -> bool:
    """Whether they are numbers of batches, each there once: a server must not have a client step for hours."""
    if not (isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)):
        return False
    return len(set(numbers)) == len(numbers) and all(0 <= number < most for number in numbers)


def _public(run: Run) -> Tensor:
    if run.engine.public is None:
        raise RefusedError("there are no public images")
    return run.engine.public


def keys(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Secure aggregation, step 1: new keys."""
    _, clock = _asked(facts, data, owner)
    before = Member.decode(memory.note(SECRETS)) if memory.note(SECRETS) else None
    member = Member.begin(owner.id, clock.who, clock.round, before)
    answer = pack({"id": owner.id, "public": member.keys().hex()})
    memory.keep(SECRETS, member.encode())
    return answer


def shares(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Step 2: shares of this client's secrets, sealed for the others."""
    _, clock = _asked(facts, data, owner)
    member = _member(memory, clock)
    answer = pack({"id": owner.id, "sealed": spelt(member.share(read_book(facts.get("publics"), PUBLIC)))})
    memory.keep(SECRETS, member.encode())
    return answer


def masked(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Step 3: a turn, of which the server learns what it adds to the sum of all, and this under masks."""
    run, received, clock = _arrive(facts, data, owner, memory)
    member = _member(memory, clock)
    member.receive(read_book(facts.get("sealed"), SEALED))
    memory.keep(SECRETS, member.encode())  # now, so that the masks serve one turn, whatever is asked while it trains
    with process_settings(run.experiment):
        outcome = run.clients.round([owner.id], received, clock)
    owner.check_upload(outcome.uploads.client(0))
    terms = added(outcome.uploads, outcome.losses[0], summed(run.method, "--secure"))
    row = member.mask(integers(terms, len(member.who)))
    answer = pack({"id": owner.id}, Upload(numbers={"masked": torch.from_numpy(row.view(np.int64))}))
    owner.check_size(size(answer))
    memory.keep(SECRETS, member.encode())
    remember(memory, run.engine.groups[0], clock.round)
    return answer


def unmask(facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory) -> RecordDict:
    """Step 4: a share of one secret of each client, by which the masks of the sum come off."""
    _, clock = _asked(facts, data, owner)
    member = _member(memory, clock)
    answer = pack({"id": owner.id, "told": spelt(member.reveal(facts["there"]))})
    memory.keep(SECRETS, member.encode())
    return answer


def _member(memory: ClientMemory, clock: Clock) -> Member:
    """This client's side of the round's secure aggregation, as it was after the last step."""
    member = Member.decode(memory.note(SECRETS)) if memory.note(SECRETS) else None
    if member is None or member.round != clock.round:
        raise RefusedError("it has no keys for this round")
    return member


def _asked(facts: Mapping[str, Any], data: bytes, owner: Owner) -> tuple[Experiment, Clock]:
    """What is to be done, if the owner allows it, and when."""
    experiment = Experiment.from_mapping(facts["experiment"])
    owner.check(experiment, len(data))
    number, rounds, who, clients, seed = facts["clock"]
    return experiment, Clock(number, rounds, tuple(who), clients, seed)


def _arrive(
    facts: Mapping[str, Any], data: bytes, owner: Owner, memory: ClientMemory, after: bool = False
) -> tuple[Run, Broadcast, Clock]:
    """This client as it is before a round, or after it, and what it was sent."""
    experiment, clock = _asked(facts, data, owner)
    here = federation_here(experiment, owner).named(facts["classes"], facts["domains"])
    machine: dict[str, Any] = {"device": owner.device, "threads": owner.threads, "engine": "sequential", "width": None}
    machine["data_dir"] = owner.data_dir or experiment.data_dir  # of public images; federation_here has its own
    run = new_run(replace(experiment, secure=False, **machine), federation=here)
    (group,) = run.engine.groups
    recall(memory, group, clock.round + after)
    flat, largest = tensors_of(data), int(owner.megabytes * 1e6)
    schema = Schema.of_broadcast(flat, group.own.initial, len(here.classes), group.feature_size, largest)
    return run, Broadcast.from_flat(schema.check(flat)), clock


def _answer(handler: Handler, message: Message, context: Context) -> Message:
    """The handler's answer; of an error nothing but its type and a code leaves this machine."""
    try:
        owner = Owner.of(context.node_config)
        facts, data = unpack(message.content, int(owner.megabytes * 1e6))
        memory: ClientMemory = StateMemory(context.state)
        if owner.memory is not None:
            memory = FolderMemory(Path(owner.memory) / _plain(facts["run"]))
        return Message(handler(facts, data, owner, memory), reply_to=message)
    except RefusedError as error:
        print(f"refused: {error}", flush=True)
        return Message(Error(REFUSED, "RefusedError"), reply_to=message)
    except Exception as error:  # whatever it is, it may tell of the data
        traceback.print_exc()
        return Message(Error(FAILED, type(error).__name__), reply_to=message)


def _plain(name: Any) -> str:
    """The name of a run, which becomes that of a folder."""
    if not (isinstance(name, str) and name.isalnum() and len(name) <= 64):
        raise RefusedError("the run has no plain name")
    return name


app = ClientApp()
app.train()(partial(_answer, train))
app.evaluate()(partial(_answer, evaluate))
app.query("hello")(partial(_answer, hello))
app.query("keys")(partial(_answer, keys))
app.query("shares")(partial(_answer, shares))
app.train("masked")(partial(_answer, masked))
app.query("unmask")(partial(_answer, unmask))
app.query("public")(partial(_answer, public_images))
app.train("public")(partial(_answer, public_step))
