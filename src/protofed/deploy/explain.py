"""What of an experiment a client would refuse, said before anybody asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protofed.deploy.client import NOT_CLIPPED, experiment_here, federation_here, turn_objections
from protofed.deploy.ledger import TODAY, Today, room_objections
from protofed.deploy.owner import CHOOSES_DATA, PARTS, Owner
from protofed.deploy.remote_public import batch_sizes, made_up_outputs
from protofed.deploy.secure_remote import masked_layout
from protofed.deploy.server_settings import ELSEWHERE
from protofed.deploy.spoken import spoken
from protofed.deploy.supervise import owner_at, place_of
from protofed.deploy.wire import pack
from protofed.engines.private import made_up_upload
from protofed.errors import RefusedError, UserError
from protofed.evaluation.names import ACCURACY, NONE
from protofed.experiment import Experiment
from protofed.messages import Upload
from protofed.methods.base import Clock
from protofed.runs.setup import Setup, prepare
from protofed.server.participation import participants
from protofed.server.public_exchange import exchange_of
from protofed.trust.secagg import length


def explained(folder: Path, number: int, data: str | None, experiment: Experiment) -> list[str]:
    """What the client would refuse, each in one line; nothing is sent, and no server is asked.

    Args:
        folder: the client's folder, or its federation's.
        number: which client.
        data: what `--data` says.
        experiment: as `deploy run` would send it.

    Raises:
        UserError: client.yaml or the data cannot be used, or the experiment cannot be run with it at all.
    """
    owner = owner_at(place_of(folder, number), number).with_data(data)
    objections = owner.objections(experiment)
    assert owner.memory is not None  # client.yaml has one
    objections += room_objections(Path(owner.memory), owner)
    if owner.named_files(experiment):  # which are not to be opened, and without them there is no turn to look at
        return objections
    try:
        objections += _turn_objections(owner, _without_refused(owner, experiment))
    except UserError:
        if not objections:
            raise
    return objections


def _without_refused(owner: Owner, experiment: Experiment) -> Experiment:
    """Without options that are refused whatever they say: what else would be is told of the run without them."""
    refused = [*ELSEWHERE, "drift_round", *(() if owner.data is None else CHOOSES_DATA)]
    usual: dict[str, Any] = {name: getattr(Experiment, name) for name in refused}
    usual |= {"metrics": NONE, "val_metric": ACCURACY}  # they may be of classes that others have
    return replace(experiment.without_privacy() if experiment.hides_examples else experiment, **usual)


def _turn_objections(owner: Owner, experiment: Experiment) -> list[str]:
    """What is known from the data and from what the method sends."""
    try:
        here = federation_here(experiment, owner)
    except RefusedError as error:
        return [str(error)]
    objections = owner.sample_objections(len(here.clients[0].train), experiment)
    setup = prepare(experiment_here(experiment, owner), federation=here)
    objections += turn_objections(owner, setup.engine)
    setup = replace(setup, experiment=experiment)
    like = made_up_upload(setup.engine, setup.engine.groups[0], len(here.classes))[1]
    exchange, looks = exchange_of(setup.method), _looks(setup)
    parts = [part for part in PARTS if any(getattr(upload, part) for upload in (like, *looks))]
    objections += owner.part_objections([*parts, "accuracies"])
    if exchange is not None and owner.clip is not None:
        objections.append(NOT_CLIPPED)
    head = pack({"experiment": spoken(experiment), "classes": here.classes, "domains": here.domains}).size()
    uploads = [head + upload.size() for upload in (_sent(setup, like), *looks)]
    objections += owner.size_objections(max(uploads), "an upload")
    answers = [answer.size() for answer in looks[1:]]  # the server answers with as much
    objections += owner.size_objections(head + max([_largest_broadcast(setup, like), *answers]), "a broadcast")
    return objections + _count_objections(owner, experiment, 1 if exchange is None else 2, sum(uploads))


def _sent(setup: Setup, like: Upload) -> Upload:
    """What a client sends after its turn, where `like` is what two made-up ones have to send."""
    if not setup.experiment.secure:
        return like.client(0)
    row = masked_layout(setup, like.reorder(torch.tensor([0])))
    return Upload(numbers={"masked": torch.zeros(length(row), dtype=torch.int64)})


def _looks(setup: Setup) -> list[Upload]:
    """What a client sends in a round's exchange on public images, if the method has one: the models, and before that
    what it makes of each batch, or of all of them.
    """
    exchange, public, group = exchange_of(setup.method), setup.engine.public, setup.engine.groups[0]
    if exchange is None or public is None:
        return []
    sizes = dict(enumerate(batch_sizes(exchange, len(public))))
    wanted = [[*sizes]] if exchange.exchange == "round" else [[number] for number in sizes]
    classes = len(setup.federation.classes)
    made_up = [made_up_outputs(exchange, group, classes, {number: sizes[number] for number in some}) for some in wanted]
    return [Upload(setup.engine.initial_broadcast().weights), *made_up]


def _largest_broadcast(setup: Setup, like: Upload) -> int:
    """Bytes of the first broadcast, or of a later one: pools of prototypes grow with the clients of a round."""
    engine, method, experiment = setup.engine, setup.method, setup.experiment
    first = engine.initial_broadcast().on_host()

    def after_a_round(clients: int) -> int:
        clock = Clock(0, experiment.rounds, tuple(range(clients)), clients, experiment.seed)
        uploads = like.reorder(torch.arange(clients) % 2)
        return method.send(method.aggregate(uploads, engine.server(first, clock)), 0).size()

    two, three = after_a_round(2), after_a_round(3)
    clients = len(participants(experiment, experiment.number_of_clients, 0))
    return max(first.size(), two + (clients - 2) * (three - two))


def _count_objections(owner: Owner, experiment: Experiment, turns: int, size: int) -> list[str]:
    """To a run in whose rounds a client has so many turns and sends so many bytes, with what it had today."""
    if experiment.participation < 1:  # who takes part is drawn
        return []
    today = Today.read(Path(owner.memory or "") / TODAY)
    turns, megabytes, sent = turns * experiment.rounds, size * experiment.rounds / 1e6, today.sent / 1e6
    objections = []
    if turns > owner.turns >= experiment.rounds:  # more rounds than that were seen before
        objections.append(f"{turns} turns: {owner.turns} of a run are allowed")
    if today.turns + turns > owner.turns_per_day:
        before = f", and {today.turns} were taken" if today.turns else ""
        objections.append(f"{turns} turns, if on this day: {owner.turns_per_day} are allowed in a day{before}")
    if sent + megabytes > owner.megabytes_per_day:
        before = f", and {sent:.3g} were sent" if sent else ""
        allowed = f"{owner.megabytes_per_day:g} MB are allowed in a day{before}"
        objections.append(f"{megabytes:.3g} MB of uploads, if on this day: {allowed}")
    return objections
