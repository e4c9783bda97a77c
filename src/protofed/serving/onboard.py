"""A client that comes later: it takes the prototypes of its classes and trains only itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from protofed.data import load
from protofed.data.federation import Client, Federation
from protofed.data.holdout import fifth_out, places
from protofed.data.preparation import Preparation
from protofed.data.records import read_labelled
from protofed.data.samples import Samples
from protofed.errors import UserError, unknown
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Method, Server, Turn, cross_entropy
from protofed.models import MODELS
from protofed.models.net import Net
from protofed.prototypes import Prototypes, distance, pooled_contrast
from protofed.randomness import generator, key
from protofed.runs.run import Run, new_run
from protofed.serving.card import TRAINING, ModelCard
from protofed.serving.export import Exported, measured
from protofed.serving.inputs import of_array
from protofed.serving.predictor import Predictor
from protofed.serving.prototype_index import PrototypeIndex

Start = Literal["pretrained", "own", "random"]
STARTS = ("pretrained", "own", "random")
RULES = ("head", "nearest")
TEMPERATURE = 0.07
"""MP-FedCL's."""
DECIDES = "nearest"
"""The rule by which `predict` answers unless told otherwise."""
FOLDS = 5
EPOCHS = 2
"""Of a newcomer's training, unless told otherwise."""


@dataclass(frozen=True)
class Newcomer(Method):
    """Trains on its own data, with a pull to the prototypes that it was sent once."""

    name: ClassVar[str] = "newcomer"

    joined: Method | None = None  # what extended the exported model, if the newcomer's is of the same kind

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        """As the exported model was."""
        return module if self.joined is None else self.joined.extend(module, classes)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE, plus FedProto's distance to a class's only prototype, or DP-FedCL's contrast with several."""
        out = model(batch.x)
        task = cross_entropy(out.logits, batch.y)
        pool = turn.received.prototypes.get("pool")
        if pool is None:  # alone
            return task
        if pool.counts.shape[-1] == 1:
            return task + distance(out.features, batch.y, pool, "mse")
        return task + pooled_contrast(out.features, batch.y, pool, TEMPERATURE)

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:  # noqa: ARG002
        """Nobody else takes part."""
        return server.previous

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """What it was sent; alone, it has nothing but class means of its own data."""
        return broadcast.prototypes.get("pool")


@dataclass(frozen=True)
class Onboarding:
    """What came out: accuracies in percent on the client's test images, by rule."""

    model: str
    start: str
    classes: list[str]
    samples: int  # to train on
    test_samples: int
    epochs: int
    prototypes: int
    bytes_down: int  # of the prototypes and, for a pretrained start, of the weights
    before: dict[str, float]
    after: dict[str, float]
    alone: dict[str, float]  # as many epochs from random weights, without prototypes; nearest: its own class means
    checked: dict[str, float]  # before and after, on training samples left out fold by fold; empty if not checked
    kept: Literal["before", "after"]  # which model is written

    def notes(self) -> list[str]:
        """What a reader of the numbers has to know: whether training did harm, and whether joining did."""
        if self.checked:
            numbers = f"nearest {self.checked['before']:.2f} % before, {self.checked['after']:.2f} % after"
            worse = "training made it worse, so the model before is kept" if self.kept == "before" else "not worse"
            notes = [f"on training samples left out in turn: {numbers}; {worse}"]
        elif self.start == "random":
            notes = ["whether training made it worse was not checked: it began with random weights"]
        else:
            why = "no class has a second training sample that could be left out"
            notes = [f"whether training made it worse could not be checked: {why}"]
        mine = getattr(self, self.kept)
        if better := [rule for rule in mine if self.alone[rule] > mine[rule]]:
            each = ", ".join(f"{rule} {self.alone[rule]:.2f} % against {mine[rule]:.2f} %" for rule in better)
            where = f"on the {self.test_samples} test samples"
            notes.append(f"training alone, from random weights and without prototypes, is better {where}: {each}")
        return notes

    def to_json(self) -> str:
        """What `--json` prints."""
        return json.dumps({**asdict(self), "notes": self.notes()}, indent=2) + "\n"


def onboard(
    predictor: Predictor,
    data: Path,
    epochs: int = EPOCHS,
    shots: int | None = None,
    start: Start | None = None,
    model: str | None = None,
    seed: int = 0,
    label: str | None = None,
) -> tuple[Exported, Onboarding]:
    """Train a new client on its data, and compare; `shots` are the training samples of each class that it has.

    `label` names the column of the classes, where `data` is a table.

    Whether training made the model worse is decided on training samples, left out fold by fold: then the model that
    came is kept. The test images are looked at once.
    """
    spec = model or predictor.card.model
    alike = spec == predictor.card.model or predictor.card.model not in MODELS  # then it was named to load the model
    if alike and predictor.card.rule is not None:
        card = predictor.card
        why = f"the model is {card.whose}'s own and answers by {card.rule}, which a newcomer does not train"
        raise UserError("MODEL", card.method["name"], why, hint="export the averaged one, without --client")
    start = _checked(start or ("pretrained" if alike else "random"), predictor, spec, alike)
    if shots is not None and shots < 1:
        raise UserError("--shots", shots, "it must be 1 or more")
    client = newcomer(predictor, data, shots, seed, label)
    pool = _of_classes(predictor, client.train.labels)
    sent = Broadcast({}, {"pool": pool.prototypes.compact()})
    teacher = _Teacher(predictor, sent, spec, alike, start, epochs, seed)
    checked = {} if start == "random" else teacher.checked(client)  # what has learned nothing is not worth asking
    trained = teacher.train(client, apart=True)
    kept: Literal["before", "after"] = "before" if checked and checked["before"] > checked["after"] else "after"
    weights = predictor.state if start == "pretrained" else {}
    outcome = Onboarding(
        model=spec,
        start=start,
        classes=[predictor.card.classes[label] for label in _held(client.train.labels)],
        samples=len(client.train),
        test_samples=len(client.pool),
        epochs=epochs,
        prototypes=int(pool.prototypes.filled.sum()),
        bytes_down=Broadcast(weights, sent.prototypes).size(),
        before=trained.before,
        after=_accuracy(trained.run),
        alone=_accuracy(trained.alone),
        checked=checked,
        kept=kept,
    )
    state = trained.begun if kept == "before" else _weights(trained.run)
    return _exported(predictor, state, spec, alike, pool, client), outcome


class _Trained(NamedTuple):
    """A newcomer with and without prototypes, and what it was before."""

    alone: Run
    run: Run
    begun: dict[str, Tensor]
    before: dict[str, float]


@dataclass(frozen=True)
class _Teacher:
    """Trains newcomers that have all but their data in common."""

    predictor: Predictor
    sent: Broadcast
    spec: str
    alike: bool
    start: Start
    epochs: int
    seed: int

    def train(self, client: Client, apart: bool) -> _Trained:
        """Train a client; without prototypes too, if it comes with weights of its own or that is asked for."""
        alone, first = self._run(client, Broadcast()), self.predictor.state if self.start == "pretrained" else None
        size = alone.engine.groups[0].feature_size
        if size != self.predictor.card.feature_size:
            why = f"its features have {size} numbers, the prototypes {self.predictor.card.feature_size}"
            raise UserError("--model", self.spec, why)
        if apart or self.start == "own":
            alone.play_round()
        if self.start == "own":  # it has trained before it came, so alone it goes on as long
            first = _weights(alone)
            alone.play_round()
        run = self._run(client, self.sent)
        if first is not None:
            run.engine.groups[0].own.put([0], {name: tensor.unsqueeze(0) for name, tensor in first.items()})
        begun, before = _weights(run), _accuracy(run)
        run.play_round()
        return _Trained(alone, run, begun, before)

    def checked(self, client: Client) -> dict[str, float]:
        """How well a client answers its training samples before and after training on the others; {} if it has one."""
        tried = [(len(fold.pool), self.train(fold, apart=False)) for fold in folds(client)]
        number = sum(size for size, _ in tried)
        if not tried:
            return {}
        return {
            "before": sum(size * found.before[DECIDES] for size, found in tried) / number,
            "after": sum(size * _accuracy(found.run)[DECIDES] for size, found in tried) / number,
        }

    def _run(self, client: Client, received: Broadcast) -> Run:
        method = Newcomer(joined=self.predictor.method if self.alike else None)
        run = _run(self.predictor.card, method, client, self.spec, self.epochs, self.seed)
        run.broadcast = received
        return run


def folds(client: Client) -> Iterator[Client]:
    """The client with some of its training samples in the place of its test, each sample once."""
    turn = places(client.train.labels) % FOLDS
    for number in range(FOLDS):
        rows, rest = (turn == number).nonzero().flatten(), (turn != number).nonzero().flatten()
        if len(rows) and len(rest):
            yield replace(
                client, train=client.train.take(rest), pool=client.train.take(rows), own=torch.arange(len(rows))
            )


def _checked(start: Start, predictor: Predictor, spec: str, alike: bool) -> Start:
    if start not in STARTS:
        raise unknown("--start", start, STARTS)
    if start == "pretrained" and not alike:
        why = f"{spec} cannot take the weights of {predictor.card.model}"
        raise UserError("--start", start, why, hint="own and random can do without")
    return start


def _exported(
    predictor: Predictor, state: dict[str, Tensor], spec: str, alike: bool, pool: PrototypeIndex, client: Client
) -> Exported:
    """The new client's model, like one that `export` makes."""
    plain: dict[str, Any] = {} if alike else {"extended_by": None, "rule": None}
    number = {**predictor.card.prototypes, "number": int(pool.prototypes.filled.sum())}
    classes = predictor.card.classes[: predictor.card.head_classes]
    about: dict[str, Any] = {"whose": "a client that came later", "prototypes": number, "classes": classes, "added": []}
    card = replace(predictor.card, model=spec, **about, **plain)
    made = Predictor(card, state, pool, predictor.encoder, spec, predictor.method)
    return measured(made, (client.pool.x, client.pool.labels))


def newcomer(predictor: Predictor, path: Path, shots: int | None, seed: int, label: str | None = None) -> Client:
    """The newcomer, whose classes are numbered as the model's are."""
    train, test = _halves(predictor, path, label)
    if shots is not None:
        order = torch.randperm(len(train), generator=generator(seed, "shots"))
        train = train.take(order[places(train.labels[order]) < shots])
    test = test.take(torch.isin(test.labels, train.labels).nonzero().flatten())
    if not len(test):
        hint = "without a test part, every fifth sample of a class is for testing"
        reason = "it holds no test samples of the classes that it holds training samples of"
        raise UserError("--data", str(path), reason, hint=hint)
    preparation = Preparation() if predictor.encoder is not None else predictor.card.preparation
    return Client(train, test, torch.arange(len(test)), None, preparation)


def _halves(predictor: Predictor, path: Path, label: str | None) -> tuple[Samples, Samples]:
    """Training and test samples of a newcomer's files."""
    card = predictor.card
    if card.encoding is None or path.suffix == ".npz":
        kind = "npz" if path.suffix == ".npz" else "folder"
        dataset = load(f"{kind}:{path}", image_size=max(card.shape[1:]) if kind == "folder" else None)
        train, test = dataset.train, dataset.test
        return _samples(predictor, train, dataset.classes), _samples(predictor, test, dataset.classes)
    records, labels = read_labelled(path, card.encoding, label)
    classes = sorted(set(labels))
    numbers = torch.tensor([classes.index(name) for name in labels])
    return fifth_out(_samples(predictor, Samples.of(card.encoding.encode(records), numbers), classes))


def _samples(predictor: Predictor, samples: Samples, classes: Sequence[str]) -> Samples:
    """The same samples as the model sees them, with its numbers of the classes."""
    known = predictor.card.classes[: predictor.card.head_classes]
    for label in _held(samples.labels):
        if classes[label] not in known:
            raise unknown("class in --data", classes[label], known)
    number = torch.tensor([known.index(name) if name in known else -1 for name in classes])
    x = of_array(samples.x, predictor.card)
    if predictor.encoder is not None:
        x = predictor.encoder.computed(x)
    return Samples.of(x, number[samples.labels])


def _of_classes(predictor: Predictor, labels: Tensor) -> PrototypeIndex:
    """The prototypes of some classes; the others, of those that the classifier knows, are without."""
    (vectors, counts), clients, numbers = predictor.pool
    known = predictor.card.head_classes
    mine = torch.isin(torch.arange(known), labels).unsqueeze(-1)
    if not bool((counts[:known] * mine).any()):
        raise UserError("--data", _held(labels), "the model has no prototype of any of these classes")
    return PrototypeIndex(
        Prototypes(vectors[:known] * mine.unsqueeze(-1), counts[:known] * mine), clients[:known], numbers[:known]
    )


def _run(card: ModelCard, method: Newcomer, client: Client, spec: str, epochs: int, seed: int) -> Run:
    """One client; each round is one turn of all its epochs. Its draws are not those of the run it joins."""
    as_before = {name: card.training[name] for name in TRAINING}
    experiment = Experiment.from_mapping(
        {
            **as_before,
            **{"batch_size": int(as_before["batch_size"]), "seed": key(seed, "newcomer"), "device": "cpu"},
            **{"method": method.name, "dataset": "custom", "model": spec, "clients": 1, "engine": "sequential"},
            **{"epochs": epochs, "rounds": 2, "eval_every": 2, "optimiser": card.optimiser},
        }
    )
    federation = Federation((client,), tuple(card.classes[: card.head_classes]))
    return new_run(experiment, method, federation)


def _held(labels: Tensor) -> list[int]:
    """Which classes there are samples of."""
    return labels.bincount().nonzero().flatten().tolist()


def _weights(run: Run) -> dict[str, Tensor]:
    return {name: tensor[0].clone() for name, tensor in run.engine.groups[0].own.take([0]).items()}


def _accuracy(run: Run) -> dict[str, float]:
    found = run.clients.evaluate(run.broadcast).means()
    return {rule: found[f"own/own/{rule}"] for rule in RULES}
