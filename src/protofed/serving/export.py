"""From a run folder to a model that can be used without it: weights, prototypes and a card."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.data.build import federation_of
from protofed.data.federation import Client, Federation
from protofed.engines.client_group import Group, State
from protofed.errors import UserError
from protofed.evaluation.accuracy import averaged_model
from protofed.experiment import Experiment
from protofed.methods import parameters
from protofed.methods.base import Method
from protofed.models import MODELS, factory_of
from protofed.models.encoder import Encoder
from protofed.prototypes import Prototypes, class_means
from protofed.randomness import generator
from protofed.runs.folder import RunFolder
from protofed.runs.network_label import read_network_label
from protofed.runs.result import Result, summarise
from protofed.runs.run import Run, new_run
from protofed.serving import refusal
from protofed.serving.card import TRAINING, ModelCard
from protofed.serving.examples import Examples
from protofed.serving.own_rule import turn_tensors
from protofed.serving.predictor import Predictor
from protofed.serving.prototype_index import PrototypeIndex

MOST = 2000
"""Held-out images whose features are kept: enough to say what a change does."""

PLAIN: dict[str, Any] = {"engine": "sequential", "width": None, "device": "cpu", "threads": None, "secure": False}
"""How models are taken out of a run, wherever it was played."""

HeldOut = tuple[Tensor, Tensor]
"""Images, or an encoder's features of them, and labels; -1 where the class has no name."""


@dataclass(frozen=True)
class Exported:
    """A model, and the features and labels of held-out images; -1 where it does not know the class."""

    predictor: Predictor
    held_out: dict[str, Tensor]

    def write(self, path: Path, onnx: bool = False) -> None:
        """A new folder."""
        if onnx:
            from protofed.serving.onnx import write_onnx

            self.predictor.write(path, self.held_out, lambda draft: write_onnx(self.predictor, draft / "model.onnx"))
        else:
            self.predictor.write(path, self.held_out)


def restored(folder: RunFolder, data: str | None = None) -> Run:
    """The run of a folder as its last checkpoint has it, on the CPU; the folder, whose run may go on, is only read.

    Of a federation over a network nobody here has the images: `data` stand in for each client's.
    """
    experiment = folder.experiment()
    elsewhere = folder.over_network and experiment.engine != "flower-sim"
    if elsewhere and data is None:
        hint = "name a client's, or others of the same classes, with --data"
        raise UserError("DIR", str(folder.path), "its images are at its clients", hint=hint)
    if data is not None and not elsewhere:
        raise UserError("--data", data, "it is for a federation's runs, and this one names its data itself")
    experiment = dataclasses.replace(experiment, dataset=data or experiment.dataset, **PLAIN)
    run = new_run(experiment, federation=_standing_in(experiment, folder) if elsewhere else None)
    if not folder.checkpoint.file.exists():
        raise UserError("DIR", str(folder.path), "the run was cut off before its first checkpoint")
    run.restore(folder)
    return run


def export(folder: RunFolder, client: int | None = None, data: str | None = None, examples: int = 0) -> Exported:
    """The averaged model of a run; a client's own where that is asked for, or where there is no averaged one.

    Which client is then the one with the most training samples. FeSEM has an averaged model a cluster: that client's.
    Over Flower clients keep their own; `data` are images that the averaged one is measured with. The model brings
    along the `examples` training samples that are nearest to each of its prototypes.
    """
    if examples < 0:
        raise UserError("--examples", examples, "it must be 0 or more")
    if examples and data is not None:
        raise UserError("--examples", examples, "training samples of a federation over a network are at its clients")
    return export_of(restored(folder, data), folder, client, data, examples=examples)


def export_of(
    run: Run,
    folder: RunFolder,
    client: int | None = None,
    data: str | None = None,
    without: Collection[int] = (),
    examples: int = 0,
) -> Exported:
    """The same of a run as it stands now, which was that of a folder; see `export_run`."""
    ended = Result.read(folder.path).stopped if folder.result.exists() else None
    over_network = folder.path if folder.over_network else None
    made = export_run(run, client, ended, data is not None, over_network, without, examples)
    if over_network is not None:  # images that were given for a test are not what was trained on
        trained = folder.experiment()
        made.predictor.card.data.update(dataset=trained.dataset, split=trained.split)
    return made


def export_run(
    run: Run,
    client: int | None,
    ended: str | None,
    given_data: bool = False,
    over_network: Path | None = None,
    without: Collection[int] = (),
    examples: int = 0,
) -> Exported:
    """The same of a run that is on the CPU.

    Args:
        run: as it stands.
        client: whose own model, if not the averaged one.
        ended: what ended the run, if it is complete.
        given_data: whether its images stand in for those of clients that are elsewhere.
        over_network: the folder of a run whose clients keep their own models.
        without: clients whose data nothing is made of.
        examples: training samples that are kept with each prototype.
    """
    if not isinstance(run.encoder, Encoder | None):
        why = "an exported model holds no code, and this encoder is your own"
        raise UserError("--encoder", run.experiment.encoder, why)
    members = {member: found for member, found in run.federation.members.items() if member not in without}
    if client is not None and client not in members:
        raise UserError("--client", client, f"clients are numbered from 0 to {len(run.federation.members) - 1}")
    chosen = max(members, key=lambda number: len(members[number].train)) if client is None else client
    group = next(group for group in run.engine.groups if chosen in group.members)
    sent = run.method.send(run.broadcast, chosen)
    whole = averaged_model(run.method, group, sent) if client is None else None
    if over_network is not None and whole is None:
        raise UserError("DIR", str(over_network), "over Flower clients keep their own models, and no other is whole")
    if whole is not None:
        state: State = whole
        whose = "averaged" if sent is run.broadcast else f"averaged in the cluster of client {chosen}"
    else:
        state = {name: tensor[0] for name, tensor in group.own.take([group.members.index(chosen)]).items()}
        whose = f"client {chosen}"
    pool = _shared_pool(run)
    source = "shared by the method"
    if pool is None and given_data:
        pool = PrototypeIndex.of(_class_means(run, group, [0], state).prototypes)
        source = "class means of the images given at export: the method shares none for this"
    elif pool is None:
        some = [row for row, member in enumerate(group.members) if member in members]
        pool = _class_means(run, group, some if whole is not None else [group.members.index(chosen)], state)
        source = "class means of training data, computed at export: the method shares none for this"
    rule = run.method.rule if whole is None and run.method.rule else None
    turn = _turn(run, group, chosen) if rule is not None else None
    card = _card(run, group, chosen, pool, {"whose": whose, "source": source}, ended, rule)
    weights = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    own_code = None if card.model in MODELS else factory_of(card.model)
    made = Predictor(card, weights, pool, run.encoder, own_code, run.method, turn)
    if examples:
        owners = [chosen] if whole is None else [member for member in group.members if member in members]
        made = made.with_examples(_training(made, {owner: members[owner] for owner in owners}), examples)
    return measured(made, _held_out(run, members[chosen]))


def _turn(run: Run, group: Group, chosen: int) -> dict[str, Tensor]:
    """What a client knows after training, for its method's own rule."""
    turns = run.engine.turns_after(group, [group.members.index(chosen)], run.broadcast)
    return turn_tensors(turns.turn(turns.personal.rows(0), torch.tensor(0)))


def _training(predictor: Predictor, members: Mapping[int, Client]) -> Examples:
    """All training samples of some clients."""
    x, labels = (torch.cat([getattr(one.train, name) for one in members.values()]) for name in ("x", "labels"))
    owners = torch.cat([torch.full((len(one.train),), owner) for owner, one in members.items()])
    return Examples(x, labels, owners, predictor.outputs(x)[0])


def _standing_in(experiment: Experiment, folder: RunFolder) -> Federation:
    """As many clients as a federation's run has, each with all of the experiment's dataset."""
    said = read_network_label(folder.network_label, experiment.number_of_clients)
    whole = federation_of(dataclasses.replace(experiment, split="iid", clients=1, train_size=None))
    whole = whole.named(said["classes"], whole.domains)
    return dataclasses.replace(whole, clients=whole.clients * experiment.number_of_clients)


def measured(predictor: Predictor, samples: HeldOut) -> Exported:
    """The same model, whose card says how it fares on held-out images and which distances are too large."""
    order = torch.randperm(len(samples[1]), generator=generator("held-out"))
    images = samples[0][order]
    plain = predictor.outputs(images)
    labels = samples[1][order]
    known = (labels >= 0) & predictor.pool.prototypes.present[labels]
    accuracy: dict[str, float] = {"images": int(known.sum()), "unknown_images": int((~known).sum())}
    tables = {}
    for rule in predictor.card.rules:
        seen = predictor.outputs(images, rule) if rule == predictor.card.rule else plain
        found = predictor.answer(*seen, rule, top=1)
        if bool(known.any()):
            accuracy[rule] = 100 * float((found.top[:, 0] == labels)[known].double().mean())
        tables[rule] = refusal.calibrate(found.distances[known, 0], found.distances[~known, 0])
    kept = {"features": plain[0][:MOST], "labels": torch.where(known, labels, -1)[:MOST]}
    return Exported(predictor.with_card(held_out=accuracy, refusal=tables), kept)


def _shared_pool(run: Run) -> PrototypeIndex | None:
    """The prototypes that the method predicts by; whose they are, where the server pools what clients sent."""
    found = run.method.references(run.broadcast)
    if found is None:
        return None
    found = Prototypes(found.vectors.float(), found.counts.float())
    who = torch.tensor(run.history[-1].participants if run.history else [])  # a client does not learn whose they are
    for vectors, counts in run.broadcast.prototypes.values():
        if counts.dim() == 3 and len(counts) == len(who) and run.method.sets_are_of_clients():
            pool = PrototypeIndex.of_clients(Prototypes(vectors.float(), counts.float()), who)
            if torch.equal(pool.prototypes.vectors, found.vectors):
                return pool
    return PrototypeIndex.of(found)


def _class_means(run: Run, group: Group, rows: Sequence[int], state: State) -> PrototypeIndex:
    """Of each client's training data by one model."""
    states = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
    means = [class_means(*run.engine.embed(group, [row], states), len(run.federation.classes)) for row in rows]
    vectors, counts = (torch.cat(parts).float() for parts in zip(*means, strict=True))
    return PrototypeIndex.of_clients(Prototypes(vectors, counts), torch.tensor([group.members[row] for row in rows]))


def _held_out(run: Run, client: Client) -> HeldOut:
    """The test images of all classes, and those of classes that nobody trained on."""
    images, labels = client.pool.x, client.pool.labels
    novel = run.federation.novel
    if novel is None:
        return images, labels
    return torch.cat([images, novel.x]), torch.cat([labels, torch.full_like(novel.labels, -1)])


def _card(
    run: Run,
    group: Group,
    chosen: int,
    pool: PrototypeIndex,
    about: dict[str, str],
    ended: str | None,
    rule: str | None,
) -> ModelCard:
    experiment, client = run.experiment, run.federation.members[chosen]
    specs = experiment.model.split(",")
    shape, dtype, preparation = tuple(client.train.x.shape[1:]), client.train.x.dtype, client.preparation
    if isinstance(run.encoder, Encoder):
        seen = run.encoder.card
        shape, dtype, preparation = seen.shape, seen.dtype, seen.preparation
    tested = summarise(run.history) if any(played.accuracy for played in run.history) else {}
    stopped = ended or run.ended_by() or "cut off"
    told = ("dataset", "split", "alpha", "clients", "train_size", "novel", "seed")
    return ModelCard(
        classes=list(run.federation.classes),
        shape=shape,
        dtype=str(dtype).removeprefix("torch."),  # type: ignore[arg-type]  # checked by the card
        preparation=preparation,
        encoding=run.federation.encoding,
        model=specs[chosen * len(specs) // run.federation.total],
        extended_by=None if type(run.method).extend is Method.extend and rule is None else experiment.method,
        rule=rule,
        head_classes=len(run.federation.classes),
        feature_size=group.feature_size,
        encoder=run.encoder is not None,
        training={name: float(getattr(experiment, name)) for name in TRAINING},
        optimiser=experiment.optimiser,
        refusal={},
        whose=about["whose"],
        prototypes={"number": int(pool.prototypes.filled.sum()), "source": about["source"]},
        method={
            **{name: getattr(run.method, name) for name in ("name", "paper", "link")},
            "params": {name: getattr(run.method, name) for name in parameters(type(run.method))},
        },
        data={name: getattr(experiment, name) for name in told},
        rounds={
            "played": len(run.history),
            "planned": experiment.rounds,
            "stopped": stopped,
            "complete": ended is not None,
        },
        shared={
            **{name: getattr(run.method, name) for name in ("up", "down")},
            **{name: sum(getattr(played, name) for played in run.history) for name in ("bytes_up", "bytes_down")},
        },
        accuracy={name: found.last for name, found in tested.items()},
        diagnostic=[name for name, found in tested.items() if found.diagnostic],
        held_out={},
    )
