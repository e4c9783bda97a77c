"""python -m benchmarks.leakage: what a curious server learns from what clients send, with and without protections.

The server follows the protocol and looks at what it holds: a client's upload of a round, what it sent before, the
architecture, the initial weights, and images of its own of the same kind (half of the test set). It tries two things.
Reconstruction: an image whose feature is the vector that was sent; a hit is a training image that is nearer to it than
each of 100 images of the same class that nobody trained on. Membership: was this image among the client's? Uploads are
those of real runs. Clients hold 1, 2, 5 or 20 images of a class, so that small counts occur, as under label skew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from protofed.data import Client, Federation, Samples, load
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Method, Server, Trained, cross_entropy
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.mp_fedcl import MPFedCL
from protofed.prototypes import Prototypes, kmeans, nearest_class
from protofed.prototypes.finch import hierarchy
from protofed.randomness import generator
from protofed.runs.process import process_settings
from protofed.runs.run import Run, new_run
from tools.markdown import wrapped

SIZES = (1, 2, 5, 20)
"""Images of a class that a client may hold."""
BATCHES = (1, 2, 4, 8)
"""Images of a client that takes a single step: the worst case of sending weights."""
CLIENTS, DECOYS, TRAIN = 8, 100, 6000
TRAINING: dict[str, Any] = {"rounds": 10, "epochs": 5, "batch_size": 16, "lr": 0.02}
STEPS, RATE, PRIOR, RIDGE = 150, 0.1, 1e-3, 1e-2
"""Of the attacks: Adam's steps and rate, the weight of the total variation, and the decoder's ridge."""
WEIGHT, BIAS = "encoder.0.weight", "encoder.0.bias"
"""The MLP's first layer."""
COINCIDE = 0.02
"""Two neurons saw the same single image if their pixels differ by no more than this on average (pixels of std 1)."""
BEGIN, END = "<!-- begin: written by python -m benchmarks.leakage -->", "<!-- end: leakage -->"

Encode = Callable[[Tensor], Tensor]
"""Features of images [n, c, h, w] with pixels from 0 to 1."""
Guesses = dict[str, dict[tuple[int, int], Tensor]]
"""By attack, an image for each of a client's prototypes, by class and slot."""
Found = dict[str, Any]


@dataclass(frozen=True)
class Protection:
    """What a client does to its upload: small prototypes are not sent; vectors are clipped, and noise is added."""

    least: int = 1
    sigma: float | None = None  # noise's std in units of the clipping norm


VECTORS = {
    "as it is": Protection(),
    "2 or more": Protection(least=2),
    "5 or more": Protection(least=5),
    "noise 0.05": Protection(sigma=0.05),
    "noise 0.5": Protection(sigma=0.5),
}
WEIGHTS = {
    "as it is": Protection(),
    "noise 0.001": Protection(sigma=0.001),
    "noise 0.01": Protection(sigma=0.01),
    "noise 0.1": Protection(sigma=0.1),
}
"""A model has a thousand times as many numbers as a prototype, so the same σ is far more noise."""

PROBES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedproto": ("fedproto", {}),
    "mp-fedcl k=2": ("mp-fedcl", {"k": 2}),
    "mp-fedcl k=4": ("mp-fedcl", {"k": 4}),
    "fedplvm": ("fedplvm", {"lam": 1.0}),
    "fedavg": ("fedavg", {}),
    **{f"fedavg, a step with {number}": ("fedavg", {}) for number in BATCHES},
}

ALL_ROUNDS: dict[str, tuple[str, dict[str, Any], dict[str, Protection]]] = {
    "fedproto, all rounds": ("fedproto", {}, {name: VECTORS[name] for name in ("as it is", "noise 0.05", "noise 0.5")}),
    "fedavg, all rounds": ("fedavg", {}, WEIGHTS),
}
"""Probes of somebody who has seen every round."""


# ---------------------------------------------------------------------------------------------------------------------
# Who holds what, and the uploads of a real run
# ---------------------------------------------------------------------------------------------------------------------


class World(NamedTuple):
    """The clients, the server's own images, and images of every class, class by class, that nobody trained on."""

    federation: Federation
    shadow: Samples
    decoys: Tensor  # [C, DECOYS, c, h, w], pixels from 0 to 1


def world(dataset: str, data_dir: Path | None, counts: Tensor, seed: int) -> World:
    """Deal images to clients by `counts`, [clients, classes]; the server gets half of the test set."""
    data = load(dataset, data_dir, None if dataset == "digits" else TRAIN, None)
    held: list[list[Tensor]] = [[] for _ in counts]
    shadow, decoys = [], []
    for label, sizes in enumerate(counts.T.tolist()):
        train, test = (_shuffled(part.labels, label, seed) for part in (data.train, data.test))
        *parts, rest = torch.split(train, [*sizes, len(train) - sum(sizes)])
        for mine, part in zip(held, parts, strict=True):
            mine.append(part)
        shadow.append(test[::2])
        outside = torch.cat([data.train.x[rest], data.test.x[test[1::2]]])
        assert len(outside) >= DECOYS, f"class {label} has too few images"
        decoys.append(outside[:DECOYS] / 255)
    everything = torch.arange(len(data.test))
    clients = [Client(data.train.take(torch.cat(mine)), data.test, everything, None, data.preparation) for mine in held]
    return World(Federation(tuple(clients), data.classes), data.test.take(torch.cat(shadow)), torch.stack(decoys))


def _shuffled(labels: Tensor, label: int, seed: int) -> Tensor:
    rows = (labels == label).nonzero().flatten()
    return rows[torch.randperm(len(rows), generator=generator(seed, "leakage", "deal", label))]


class Round(NamedTuple):
    """A run's last round: what the server sees of it, and what only the clients know."""

    run: Run
    clock: Clock
    uploads: Upload
    trained: Trained
    sent: Broadcast  # what the server had sent


def play(experiment: Experiment, federation: Federation) -> Round:
    """All rounds of a run; the last one without the aggregation."""
    run = new_run(experiment, federation=federation)
    for _ in range(experiment.rounds - 1):
        run.play_round()
    who = tuple(range(federation.total))
    clock = Clock(experiment.rounds - 1, experiment.rounds, who, federation.total, experiment.seed)
    with process_settings(run.experiment), patch.object(run.engine, "upload", wraps=run.engine.upload) as watched:
        uploads = run.engine.round(who, run.broadcast, clock).uploads
    return Round(run, clock, uploads, watched.call_args.args[0], run.broadcast)


def watch(experiment: Experiment, federation: Federation) -> list[Round]:
    """All rounds of a run, each as the server sees it."""
    run, seen = new_run(experiment, federation=federation), list[Round]()
    made = run.engine.upload

    def upload(trained: Trained, *rest: Any) -> Any:
        found = made(trained, *rest)
        who = tuple(range(federation.total))
        clock = Clock(len(run.history), experiment.rounds, who, federation.total, experiment.seed)
        seen.append(Round(run, clock, found[0], trained, run.broadcast))
        return found

    with patch.object(run.engine, "upload", upload):
        for _ in range(experiment.rounds):
            run.play_round()
    return seen


def encoder(run: Run, weights: Mapping[str, Tensor]) -> Encode:
    """What a model makes of images."""
    group = run.engine.groups[0]
    net = run.engine.net(group, weights)
    return lambda images: net(group.inputs(255 * images), train=False).features


def members(method: Method, features: Tensor, label: int, classes: int, key: Tensor) -> Tensor:
    """[M, n]: which of a class's samples, with features [n, D], each of its prototypes is the mean of."""
    each = torch.eye(len(features))
    if isinstance(method, MPFedCL):  # means, in the clusters of the features, of what names a sample
        labels = torch.full((1, len(features)), label)
        found = kmeans(each[None], labels, classes, method.k, key, start=method.start, space=features[None])
        return found.vectors[0, label][found.filled[0, label]] > 0
    if isinstance(method, FedPLVM | FedPLCC):
        return one_hot(hierarchy(features[None], torch.ones(1, len(features)).bool())[0, :, -1]).T.bool()
    return torch.ones(1, len(features)).bool()


def who_is_in(played: Round, client: int, label: int) -> Tensor:
    """`members` of what a client sent of a class, checked: their mean is what was sent."""
    trained, (prototypes,) = played.trained, played.uploads.prototypes.values()
    features = trained.features[client][trained.labels[client] == label]
    found = members(played.run.method, features, label, trained.classes, trained.keys[client : client + 1])
    sent, counts = prototypes.vectors[client, label], prototypes.counts[client, label]
    torch.testing.assert_close(found.sum(1).to(counts.dtype), counts[counts > 0])
    torch.testing.assert_close(found.to(features.dtype) @ features / found.sum(1, keepdim=True), sent[counts > 0])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Protections
# ---------------------------------------------------------------------------------------------------------------------


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Vectors [..., D], none longer than `clip`."""
    length: Tensor = vectors.norm(dim=-1, keepdim=True)
    return vectors * (clip / length.clamp(min=1e-12)).clamp(max=1)


def noised(vectors: Tensor, clip: float, sigma: float, draws: torch.Generator) -> Tensor:
    """Clipped vectors with Gaussian noise of std σ · clip on every number."""
    return clipped(vectors, clip) + sigma * clip * torch.randn(vectors.shape, generator=draws)


def protected(found: Prototypes, protection: Protection, clip: float, draws: torch.Generator) -> Prototypes:
    """What is sent instead."""
    vectors = found.vectors if protection.sigma is None else noised(found.vectors, clip, protection.sigma, draws)
    stays = found.counts >= protection.least
    return Prototypes(vectors * stays.unsqueeze(-1), found.counts * stays)


# ---------------------------------------------------------------------------------------------------------------------
# Attacks
# ---------------------------------------------------------------------------------------------------------------------


Decode = Callable[[Tensor, Tensor], Tensor]
"""Images [n, c, h, w] from vectors [n, D] and their classes [n]."""


def decoder(features: Tensor, images: Tensor, labels: Tensor, noise: float) -> Decode:
    """The best linear map from how a vector with noise differs from its class's mean to how the image does.

    The noise's variance is what ridge regression adds, so much noise leaves the mean image of the class.
    """
    member = one_hot(labels).to(features.dtype)
    share = member / member.sum(0)
    middle, average = share.T @ features, share.T @ images.flatten(1)
    inputs, outputs = (features - middle[labels]).double(), (images.flatten(1) - average[labels]).double()
    gram = inputs.T @ inputs
    gram.diagonal().add_(RIDGE * gram.diagonal().mean() + len(inputs) * noise**2)
    back = torch.linalg.solve(gram, inputs.T @ outputs).to(images.dtype)
    return lambda vectors, label: (
        ((vectors - middle[label]) @ back + average[label]).clamp(0, 1).view(-1, *images.shape[1:])
    )


def optimised(encode: Encode, targets: Tensor, starts: Tensor) -> Tensor:
    """Images [P, c, h, w] whose features are the targets [P, D]: the best of several starts [S, P, c, h, w]."""
    images = starts.clone().requires_grad_()
    adam = torch.optim.Adam([images], lr=RATE)
    scale = targets.square().sum(-1).clamp(min=1e-12)
    for _ in range(STEPS):
        features = torch.unflatten(encode(images.flatten(0, 1)), 0, images.shape[:2])
        gap = (features - targets).square().sum(-1) / scale
        variation = images.diff(dim=-1).abs().mean((-3, -2, -1)) + images.diff(dim=-2).abs().mean((-3, -2, -1))
        (images.grad,) = torch.autograd.grad((gap + PRIOR * variation).sum(), images)
        adam.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()[gap.argmin(0), torch.arange(len(targets))]


def inverted(weight: Tensor, bias: Tensor, number: int) -> Tensor:
    """Inputs [number, I] of a linear layer from the change of its weight [H, I] and bias [H] in one step of SGD.

    A neuron that a single image has moved shows it: the change of its weights over that of its bias. Which neurons
    these are shows too, because they agree, while mixtures of images of several classes differ. With one image all
    agree.
    """
    left, size, right = torch.linalg.svd(torch.cat([weight, bias.unsqueeze(1)], 1), full_matrices=False)
    change = left[:, :number] * size[:number] @ right[:number]  # no more images, no more directions: the rest is noise
    weight, bias = change[:, :-1], change[:, -1]
    moved = bias.abs() > 1e-3 * bias.abs().max()
    weight, bias = weight[moved], bias[moved]
    shown = weight / bias.unsqueeze(1)
    agree = torch.cdist(shown, shown) <= COINCIDE * shown.shape[1] ** 0.5
    if number == 1:
        agree = torch.ones_like(agree)
    open_, found = torch.ones_like(bias).bool(), []
    for _ in range(number):
        support = (agree & open_).sum(1) * open_ + bias.abs() / bias.abs().sum()
        support[~open_] = -1
        chosen = agree[support.argmax()] & open_
        part = bias * chosen
        found.append(part @ weight / part.square().sum().clamp(min=1e-30))
        open_ = open_ & ~chosen
    return torch.stack(found)


# ---------------------------------------------------------------------------------------------------------------------
# How well an attack did
# ---------------------------------------------------------------------------------------------------------------------


def hits(guess: Tensor, images: Tensor, decoys: Tensor) -> Tensor:
    """[n]: whether an image is nearer to the guess than every decoy is. By chance: one in the decoys and one more."""
    return _squares(guess, images) < _squares(guess, decoys).min()


def closeness(guess: Tensor, images: Tensor) -> float:
    """PSNR, in dB, to the nearest image; the same image to the last bit of a pixel is 60 dB or so, and the most."""
    return float(-10 * _squares(guess, images).min().clamp(min=1e-6).log10())


def _squares(guess: Tensor, images: Tensor) -> Tensor:
    return (images - guess).square().flatten(1).mean(1)


def above(scores: Tensor, others: Tensor) -> Tensor:
    """[n]: the part of the others that a score is above, half for equal ones; the mean over scores is the AUC."""
    gap = scores.unsqueeze(1) - others
    return ((gap > 0).double() + 0.5 * (gap == 0).double()).mean(1)


def told(scores: Tensor, others: Tensor, false_alarms: float = 0.01) -> Tensor:
    """[n]: whether a score is so high that no more than this part of the others reaches it."""
    return (others >= scores.unsqueeze(1)).double().mean(1) <= false_alarms


class Tally:
    """Numbers of single images, by row of the table, protection and measure."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], list[float]] = defaultdict(list)

    def add(self, rows: Sequence[str], protection: str, measure: str, values: Tensor) -> None:
        """One value an image."""
        for row in rows:
            self.values[row, protection, measure] += values.double().flatten().tolist()

    def means(self) -> Found:
        """The mean of each."""
        found: Found = {}
        for (row, protection, measure), values in self.values.items():
            cell = found.setdefault(row, {}).setdefault(protection, {"images": 0})
            cell["images"] = max(cell["images"], len(values))
            cell[measure] = statistics.fmean(values)
        return found


# ---------------------------------------------------------------------------------------------------------------------
# The probes
# ---------------------------------------------------------------------------------------------------------------------


def prototypes_probe(played: Round, place: World, shadow: Encode | None) -> Found:
    """Both attacks on the prototypes that every client sent, by someone who knows its encoder, or has another one."""
    run, trained = played.run, played.trained
    ((name, uploaded),) = played.uploads.prototypes.items()
    clip = float(uploaded.vectors[uploaded.filled].norm(dim=-1).median())
    tally = Tally()
    holders = [(client, label) for client, label in uploaded.present.nonzero().tolist()]
    inside = {pair: who_is_in(played, *pair) for pair in holders}
    known: dict[tuple[float | None, int], tuple[Knowledge, Guesses]] = {}  # withholding changes no guess of the rest
    for protection, how in VECTORS.items():
        sent = protected(uploaded, how, clip, generator(played.clock.seed, "leakage", "noise", name))
        seen = Upload(played.uploads.weights, {name: sent}, played.uploads.numbers)
        references = run.method.references(run.method.aggregate(seen, Server(played.sent, played.clock)))
        assert references is not None
        for client, holder in run.federation.members.items():
            own = encoder(run, {key: value[client] for key, value in trained.weights.items()})
            if (how.sigma, client) not in known:
                knowledge = Knowledge(shadow or own, place, how.sigma, clip, shadow is None)
                known[how.sigma, client] = knowledge, knowledge.guesses(sent.take(client))
            knowledge, guesses = known[how.sigma, client]
            with torch.no_grad():
                said = nearest_class(own(place.decoys.flatten(0, 1)), references).view(place.decoys.shape[:2])
            tally.add(["all, accuracy"], protection, "accuracy", said == torch.arange(len(said)).unsqueeze(1))
            for label in holder.train.labels.bincount().nonzero().flatten().tolist():
                images, decoys = holder.train.x[holder.train.labels == label] / 255, place.decoys[label]
                scores, others = (knowledge.scores(some, sent.take(client), label) for some in (images, decoys))
                for slot, mine in enumerate(inside[client, label]):
                    number = int(mine.sum())
                    rows = ["all", size_name(run.method, number)]
                    tally.add(rows, protection, "auc", above(scores[mine], others))
                    tally.add(rows, protection, "tpr", told(scores[mine], others))
                    stays = bool(sent.filled[client, label, slot])
                    tally.add(rows, protection, "sent", torch.full((number,), stays))
                    for attack, made in guesses.items():
                        guess = made[label, slot]
                        tally.add(rows, protection, f"hit, {attack}", hits(guess, images[mine], decoys) & stays)
                        if stays:
                            near = closeness(guess, images[mine])
                            tally.add(rows, protection, f"psnr, {attack}", torch.full((number,), near))
    return tally.means()


def size_name(method: Method, members: int) -> str:
    """The row of a prototype of so many samples: class means are as large as the class, clusters as they come."""
    return str(members) if members <= 2 or not isinstance(method, MPFedCL | FedPLVM | FedPLCC) else "more"


class Knowledge:
    """What the server makes of a client's prototypes with an encoder and images of its own."""

    def __init__(self, encode: Encode, place: World, sigma: float | None, clip: float, own: bool) -> None:
        """It knows how uploads are protected, though not the noise; of an encoder not its own only directions agree."""
        self.directions = not own
        cut: Encode = encode if sigma is None else lambda images: clipped(encode(images), clip)
        self.encode: Encode = lambda images: self.look(cut(images))
        self.x, self.labels = place.shadow.x / 255, place.shadow.labels
        with torch.no_grad():
            self.features = self.encode(self.x)
            scale = clipped(encode(self.x), clip).norm(dim=-1).mean() if self.directions else 1.0
        noise = 0.0 if sigma is None else sigma * clip / float(scale)
        self.decode = decoder(self.features, self.x, self.labels, noise)

    def look(self, vectors: Tensor) -> Tensor:
        """As much of features or prototypes as can be compared."""
        return normalize(vectors, dim=-1) if self.directions else vectors

    def guesses(self, sent: Prototypes) -> Guesses:
        """By attack, an image for each prototype, by class and slot; `nothing` does without the prototype."""
        places = [(label, slot) for label, slot in sent.filled.nonzero().tolist()]
        vectors = self.look(sent.vectors[sent.filled])
        labels = torch.tensor([label for label, _ in places])
        average = torch.stack([self.x[self.labels == label].mean(0) for label in labels])
        nearest = self.x[torch.cdist(vectors, self.features).argmin(1)]
        decoded = self.decode(vectors, labels)
        found = optimised(self.encode, vectors, torch.stack([decoded, nearest]))
        by_attack = {"nothing": average, "decoder": decoded, "optimised": found}
        return {attack: dict(zip(places, images, strict=True)) for attack, images in by_attack.items()}

    @torch.no_grad()
    def scores(self, images: Tensor, sent: Prototypes, label: int) -> Tensor:
        """[n]: how near each image's feature is to a prototype of its class; all alike where none was sent."""
        vectors = self.look(sent.vectors[label][sent.filled[label]])
        if not len(vectors):
            return torch.zeros(len(images))
        return -torch.cdist(self.encode(images), vectors, compute_mode="donot_use_mm_for_euclid_dist").amin(1)


def weights_probe(played: Round, place: World) -> Found:
    """Membership by the loss under the weights a client sent, against that under those it was sent; and of the mean."""
    run, sent, uploads = played.run, played.sent.weights, played.uploads.weights
    group = run.engine.groups[0]
    deltas = torch.stack([_flat(uploads, client) - _flat(sent) for client in range(run.federation.total)])
    clip = float(deltas.norm(dim=1).median())

    @torch.no_grad()
    def losses(vector: Tensor, images: Tensor, label: int) -> Tensor:
        logits = run.engine.net(group, _like(vector, sent))(group.inputs(255 * images), train=False).logits
        return cross_entropy(logits, torch.full((len(images),), label))

    tally, before = Tally(), _flat(sent)
    for protection, how in WEIGHTS.items():
        draws = generator(played.clock.seed, "leakage", "noise", "weights")
        seen = deltas if how.sigma is None else noised(deltas, clip, how.sigma, draws)
        share = played.uploads.numbers["samples"] / played.uploads.numbers["samples"].sum()
        central = share @ (deltas if how.sigma is None else clipped(deltas, clip))
        if how.sigma is not None:
            central = central + how.sigma * clip * float(share.max()) * torch.randn(central.shape, generator=draws)
        for row, after in (("one client", before + seen), ("mean of all", (before + central).expand_as(deltas))):
            mean = before + share @ seen if row == "one client" else before + central
            for label, decoys in enumerate(place.decoys):
                logits = run.engine.net(group, _like(mean, sent))(group.inputs(255 * decoys), train=False).logits
                tally.add([f"{row}, accuracy"], protection, "accuracy", logits.argmax(1) == label)
            for client, holder in run.federation.members.items():
                for label in holder.train.labels.bincount().nonzero().flatten().tolist():
                    images = holder.train.x[holder.train.labels == label] / 255
                    scores, others = (
                        losses(before, some, label) - losses(after[client], some, label)
                        for some in (images, place.decoys[label])
                    )
                    tally.add([row], protection, "auc", above(scores, others))
                    tally.add([row], protection, "tpr", told(scores, others))
    return tally.means()


def rounds_probe(rounds: Sequence[Round], place: World, protections: Mapping[str, Protection]) -> Found:
    """Membership by what one round tells, and by the sum over all: noise is drawn anew in each."""
    tally = Tally()
    for protection, how in protections.items():
        told_by = [_weights_tell(one, how) if one.uploads.weights else _means_tell(one, how) for one in rounds]
        for client, holder in rounds[0].run.federation.members.items():
            for label in holder.train.labels.bincount().nonzero().flatten().tolist():
                images, decoys = holder.train.x[holder.train.labels == label] / 255, place.decoys[label]
                each = [[tell(some, client, label) for some in (images, decoys)] for tell in told_by]
                whole = [torch.stack(some).sum(0) for some in zip(*each, strict=True)]
                for row, (scores, others) in (("the last round", each[-1]), ("all rounds", whole)):
                    tally.add([row], protection, "auc", above(scores, others))
                    tally.add([row], protection, "tpr", told(scores, others))
    return tally.means()


Tell = Callable[[Tensor, int, int], Tensor]
"""How much a round says that images were a client's, of a class [n]."""


def _means_tell(played: Round, how: Protection) -> Tell:
    """How near their features are to the class mean that was sent; the encoder is known."""
    ((name, uploaded),) = played.uploads.prototypes.items()
    clip = float(uploaded.vectors[uploaded.filled].norm(dim=-1).median())
    sent = protected(uploaded, how, clip, generator(played.clock.seed, "leakage", "rounds", name, played.clock.round))
    weights = [{key: value[row] for key, value in played.trained.weights.items()} for row in played.clock.who]

    @torch.no_grad()
    def tell(images: Tensor, client: int, label: int) -> Tensor:
        features = encoder(played.run, weights[client])(images)
        near: Tensor = (features - sent.vectors[client, label, 0]).norm(dim=-1)
        return -near

    return tell


def _weights_tell(played: Round, how: Protection) -> Tell:
    """How much their loss fell in the round."""
    run, sent = played.run, played.sent.weights
    before = _flat(sent)
    deltas = torch.stack([_flat(played.uploads.weights, row) - before for row in played.clock.who])
    draws = generator(played.clock.seed, "leakage", "rounds", "weights", played.clock.round)
    clip = float(deltas.norm(dim=1).median())
    seen = before + (deltas if how.sigma is None else noised(deltas, clip, how.sigma, draws))

    @torch.no_grad()
    def tell(images: Tensor, client: int, label: int) -> Tensor:
        inputs = run.engine.groups[0].inputs(255 * images)
        truth = torch.full((len(images),), label)
        first, then = (
            cross_entropy(run.engine.net(run.engine.groups[0], _like(one, sent))(inputs, train=False).logits, truth)
            for one in (before, seen[client])
        )
        return first - then

    return tell


def step_probe(played: Round, place: World) -> Found:
    """The images of a client's only step, from what it did to the first layer."""
    run, sent, uploads = played.run, played.sent.weights, played.uploads.weights
    deltas = torch.stack([_flat(uploads, client) - _flat(sent) for client in range(run.federation.total)])
    clip = float(deltas.norm(dim=1).median())
    tally = Tally()
    for protection, how in WEIGHTS.items():
        draws = generator(played.clock.seed, "leakage", "noise", "step")
        seen = deltas if how.sigma is None else noised(deltas, clip, how.sigma, draws)
        for client, holder in run.federation.members.items():
            changed = _like(seen[client], sent)
            inputs = inverted(changed[WEIGHT], changed[BIAS], len(holder.train))
            mean, std = (
                torch.tensor(part).view(-1, 1, 1) for part in (holder.preparation.mean, holder.preparation.std)
            )
            guesses = (inputs.view(-1, *holder.train.x.shape[1:]) * std + mean).clamp(0, 1)
            for image, label in zip(holder.train.x / 255, holder.train.labels.tolist(), strict=True):
                one = image.unsqueeze(0)
                hit = torch.stack([hits(guess, one, place.decoys[label]) for guess in guesses]).any(0)
                near = max(closeness(guess, one) for guess in guesses)
                tally.add(["a step"], protection, "hit, analytic", hit)
                tally.add(["a step"], protection, "psnr, analytic", torch.tensor([near]))
    return tally.means()


def _flat(weights: Mapping[str, Tensor], client: int | None = None) -> Tensor:
    return torch.cat([(value if client is None else value[client]).flatten() for value in weights.values()])


def _like(vector: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    parts = torch.split(vector, [value.numel() for value in weights.values()])
    return {name: part.view_as(value) for (name, value), part in zip(weights.items(), parts, strict=True)}


def measure(probe: str, dataset: str, data_dir: Path | None, model: str, seed: int) -> Found:
    """One probe of one seed."""
    method, params = PROBES[probe] if probe in PROBES else ALL_ROUNDS[probe][:2]
    given: dict[str, Any] = {"method": method, "params": params, "dataset": dataset, "model": model, "seed": seed}
    experiment = Experiment(**given, engine="sequential", device="cpu", clients=CLIENTS, eval_every=10**6, **TRAINING)
    client, label = torch.arange(CLIENTS).unsqueeze(1), torch.arange(10)
    if "a step" in probe:
        number = int(probe.rsplit(maxsplit=1)[-1])
        place = world(dataset, data_dir, ((label - client) % 10 < number).long(), seed)
        experiment = replace(experiment, model="mlp", rounds=1, epochs=1)
        return step_probe(play(experiment, place.federation), place)
    place = world(dataset, data_dir, torch.tensor(SIZES)[(label + client) % len(SIZES)], seed)
    if probe in ALL_ROUNDS:
        return rounds_probe(watch(experiment, place.federation), place, ALL_ROUNDS[probe][2])
    played = play(experiment, place.federation)
    if method == "fedavg":
        return weights_probe(played, place)
    found = prototypes_probe(played, place, None)
    if not played.uploads.weights:
        # What the server can do instead: train on its own images, from the initial weights that all have in common.
        alone = replace(place.federation.clients[0], train=place.shadow)
        shadow = play(replace(experiment, clients=1), Federation((alone,), place.federation.classes))
        encode = encoder(shadow.run, {name: value[0] for name, value in shadow.trained.weights.items()})
        guessed = prototypes_probe(played, place, encode)
        found |= {f"{row}, encoder unknown": cells for row, cells in guessed.items()}
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------

CLUSTERS = {"1": "1", "2": "2", "more": "3 or more", "all": "any number"}
MEANS = {str(number): str(number) for number in SIZES} | {"all": "any number"}
ROWS: list[tuple[str, str, dict[str, str]]] = [
    ("fedproto", "class means (FedProto)", {f"{row}, encoder unknown": said for row, said in MEANS.items()}),
    ("fedproto", "class means, encoder known", MEANS),
    ("mp-fedcl k=2", "K-means, K = 2 (MP-FedCL)", CLUSTERS),
    ("mp-fedcl k=4", "K-means, K = 4 (MP-FedCL)", CLUSTERS),
    ("fedplvm", "FINCH clusters (FedPLVM)", CLUSTERS),
]
"""Of the tables on prototypes: a probe, what is sent, and by row how many samples are behind a vector."""
ATTACKS = ("decoder", "optimised", "analytic")


class Results:
    """What was found in one setting (dataset and model), over its seeds."""

    def __init__(self, found: Found, setting: str) -> None:
        cells = {name.removeprefix(f"{setting}/"): cell for name, cell in found.items() if name.startswith(setting)}
        self.cells = [(name.rpartition("/")[0], cell) for name, cell in cells.items()]
        self.seeds = len({name.rpartition("/")[2] for name in cells})

    def values(self, probe: str, row: str, measure: str, protection: str = "as it is") -> list[float]:
        """One a seed; of several attacks, those of the best one. None where there is nothing to measure."""
        if measure in ("hit", "psnr"):
            each = [self.values(probe, row, f"{measure}, {attack}", protection) for attack in ATTACKS]
            return max((values for values in each if values), key=statistics.fmean, default=[])
        cells = [cell[row][protection] for name, cell in self.cells if name == probe and row in cell]
        return [cell[measure] for cell in cells if measure in cell]

    def mean(self, probe: str, row: str, measure: str, protection: str = "as it is") -> float:
        """Over the seeds."""
        return statistics.fmean(self.values(probe, row, measure, protection))

    def text(self, probe: str, row: str, measure: str, protection: str = "as it is") -> str:
        """Mean ± sample standard deviation over the seeds; parts in %."""
        if measure == "hit" and not any(self.values(probe, row, "sent", protection) or [1]):
            return "not sent"
        scale, digits = {"psnr": (1, 1), "psnr, nothing": (1, 1), "auc": (1, 2)}.get(measure, (100, 0))
        values = [scale * value for value in self.values(probe, row, measure, protection)]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    def texts(self, probe: str, row: str, measure: str, protections: Iterable[str]) -> list[str]:
        """With each protection."""
        return [self.text(probe, row, measure, protection) for protection in protections]


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; numbers, from the third column on, to the right."""
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def section(found: Found, setting: str) -> str:
    """The tables of one setting, and what they say."""
    of, (dataset, model) = Results(found, setting), setting.split("/")
    lines = [(probe, what, row, said) for probe, what, parts in ROWS for row, said in parts.items()]
    blind = ["nothing: the mean of the server's own images", "any number", of.text("fedproto", "all", "psnr, nothing")]
    blind += [of.text("fedproto", "all", "hit, nothing"), *["–"] * (len(VECTORS) - 1)]
    return "\n\n".join(
        [
            f"### {dataset}, {model}",
            f"{CLIENTS} clients with {', '.join(map(str, SIZES[:-1]))} or {SIZES[-1]} images of a class, the last of "
            f"{TRAINING['rounds']} rounds; mean ± std of {of.seeds} seeds. *2 or more*, *5 or more*: vectors of fewer "
            "samples are not sent. *noise σ*: vectors are clipped to the median norm and every number gets Gaussian "
            "noise of σ times that norm; the server knows both. FedProto sends no weights: the server trains an "
            "encoder of its own, from the same initial weights; *encoder known* is the worst case. FedPLCC makes its "
            "clusters as FedPLVM does. Attacks can be better than these: what is protected here may not be elsewhere.",
            "\n".join(f"- {said}" for said, holds in claims(of) if holds),
            "**Which image was it?** Training images, in %, nearer to the server's reconstruction than all of "
            f"{DECOYS} others of their class; {100 / (DECOYS + 1):.0f} by chance. The better of two attacks: a linear "
            "decoder, and an image optimised to have that feature. What is not sent is no hit. PSNR, in dB, is to the "
            "nearest image behind a vector that is sent as it is.",
            markdown(
                ["what is sent", "samples behind a vector", "PSNR", *VECTORS],
                [
                    [what, said, of.text(p, row, "psnr"), *of.texts(p, row, "hit", VECTORS)]
                    for p, what, row, said in lines
                ]
                + [blind],
            ),
            "**Was this image there?** AUC of telling training images of a class from others of it by the distance to "
            "the nearest vector of the class; 0.5 is chance. *at 1 %*: images, in %, told at 1 % false alarms if sent "
            "as it is.",
            markdown(
                ["what is sent", "samples behind a vector", "at 1 %", *VECTORS],
                [
                    [what, said, of.text(p, row, "tpr"), *of.texts(p, row, "auc", VECTORS)]
                    for p, what, row, said in lines
                ],
            ),
            "**What protection costs.** Accuracy, in %, on images that nobody trained on, of the clients' models by "
            "the nearest of what the server makes of this one round's vectors. What noise in every round does to "
            "training is another question, and σ alone is no privacy budget.",
            markdown(
                ["what is sent", "", *VECTORS],
                [[what, "", *of.texts(probe, "all, accuracy", "accuracy", VECTORS)] for probe, what, _ in ROWS[1:]],
            ),
            "**Weights.** A client that takes a single step, on the MLP, with a few images, each of another class: "
            "images read off the change of the first layer, hits in %; chance is at most the number of images.",
            markdown(
                ["what is sent", "images in the step", "PSNR", *WEIGHTS],
                [
                    [
                        "weights (FedAvg)",
                        str(number),
                        of.text(probe, row, "psnr"),
                        *of.texts(probe, row, "hit", WEIGHTS),
                    ]
                    for number, probe, row in (
                        (number, f"fedavg, a step with {number}", "a step") for number in BATCHES
                    )
                ],
            ),
            "Clients that train as above: AUC by how much the loss of an image fell in the round. The mean is what "
            "other clients see, or a server behind secure aggregation; there noise is added once, to the mean.",
            markdown(
                ["what is seen", "", "at 1 %", *WEIGHTS],
                [
                    line
                    for row, what in (("one client", "a client's weights"), ("mean of all", "the mean of all weights"))
                    for line in (
                        [what, "AUC", of.text("fedavg", row, "tpr"), *of.texts("fedavg", row, "auc", WEIGHTS)],
                        [what, "accuracy, %", "", *of.texts("fedavg", f"{row}, accuracy", "accuracy", WEIGHTS)],
                    )
                ],
            ),
            *_rounds_section(of),
        ]
    )


def _rounds_section(of: Results) -> list[str]:
    """What an observer of all rounds learns, where that was measured."""
    found = []
    for probe, what in (
        ("fedproto, all rounds", "class means (FedProto), encoder known"),
        ("fedavg, all rounds", "weights (FedAvg)"),
    ):
        if of.values(probe, "all rounds", "auc"):
            names = ALL_ROUNDS[probe][2]
            lines = [[what, row, of.text(probe, row, "tpr"), *of.texts(probe, row, "auc", names)] for row in ROUNDS]
            found.append(markdown(["what is sent", "seen", "at 1 %", *names], lines))
    about = f"**An observer of all {TRAINING['rounds']} rounds** adds up what each tells; noise is drawn anew in each."
    return [about, *found] if found else []


ROUNDS = ("the last round", "all rounds")


def claims(of: Results) -> list[tuple[str, bool]]:
    """Sentences, and whether the numbers bear them out: others are not written."""
    known = ["fedproto", "mp-fedcl k=2", "mp-fedcl k=4", "fedplvm"]
    quiet, loud = [name for name, how in VECTORS.items() if how.sigma is not None]
    _, little, _, much = WEIGHTS
    steps, accuracy = [f"fedavg, a step with {number}" for number in BATCHES], "one client, accuracy"

    def lost(protection: str) -> float:
        """The largest loss of accuracy by a protection."""
        kept = [[of.mean(p, "all, accuracy", "accuracy", how) for how in ("as it is", protection)] for p in known]
        return max(before - after for before, after in kept)

    return [
        (
            "A prototype of one sample is that sample's feature: whoever knows the encoder gets the image back, be the "
            "prototype a class mean, a K-means centroid or a FINCH cluster.",
            min(of.mean(probe, "1", "hit") for probe in known) > 0.9,
        ),
        (
            "FINCH joins every sample with its neighbour, so a cluster of one is a class of one; but clusters of two "
            "are many.",
            of.mean("fedplvm", "1", "images") == of.mean("fedproto", "1", "images")
            and of.mean("fedplvm", "2", "images") > of.mean("fedproto", "2", "images"),
        ),
        (
            "Of means of two samples many images can still be picked out; of means of twenty hardly more than by "
            "chance. Membership shows for longer: with five samples it can still be told.",
            of.mean("fedproto", "2", "hit") > 0.2
            and of.mean("fedproto", "20", "hit") < 0.03
            and of.mean("fedproto", "5", "auc") > 0.65,
        ),
        (
            "Not sending weights helps: a server that must guess FedProto's encoder gets far less, though more than by "
            "chance.",
            2 * of.mean("fedproto", "1, encoder unknown", "hit") < of.mean("fedproto", "1", "hit")
            and of.mean("fedproto", "1, encoder unknown", "auc") > 0.6,
        ),
        (
            "Not sending vectors of fewer than five samples takes away most hits, for a few points of accuracy. Weak "
            "noise costs next to nothing and hides most images, but not that a lone image was there; noise that blurs "
            "this too leaves vectors that are of little use.",
            max(of.mean(p, "all", "hit", "5 or more") / of.mean(p, "all", "hit") for p in known) < 0.5
            and lost("5 or more") < 0.1
            and lost(quiet) < 0.03
            and max(of.mean(p, "all", "hit", quiet) / of.mean(p, "all", "hit") for p in known) < 0.5
            and min(of.mean(p, "1", "auc", quiet) for p in known) > 0.8
            and max(of.mean(p, "1", "auc", loud) for p in known) < 0.75
            and lost(loud) > 0.3,
        ),
        (
            "Weights are not safe either: what a client made of a few images in one step holds them, to the pixel. "
            "Little noise does not stop this; the most that was tried does, and a round's accuracy hardly notices.",
            min(of.mean(step, "a step", "hit") for step in steps) > 0.9
            and min(of.mean(step, "a step", "hit", little) for step in steps) > 0.2
            and max(of.mean(step, "a step", "hit", much) for step in steps) < 0.1
            and of.mean("fedavg", accuracy, "accuracy", much) > of.mean("fedavg", accuracy, "accuracy") - 0.03,
        ),
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is not in the file yet, save, and write the tables into a page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leakage", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder with MNIST, which is taken then instead of the digits")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--seeds", type=int, default=3)
    probes = [*PROBES, *ALL_ROUNDS]
    parser.add_argument("--only", nargs="+", choices=probes, default=probes, metavar="PROBE")
    parser.add_argument("--out", type=Path, default=Path("runs/leakage.json"), help="what it holds is kept")
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args(words)
    found: Found = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    dataset = "digits" if asked.data_dir is None else "mnist"
    setting = f"{dataset}/{asked.model}"
    for seed in range(asked.seeds):
        for probe in asked.only:
            name = f"{setting}/{probe}/{seed}"
            if name not in found:
                found[name] = measure(probe, dataset, asked.data_dir, asked.model, seed)
                asked.out.parent.mkdir(parents=True, exist_ok=True)
                asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(name, flush=True)
    if asked.page is not None:
        if not asked.page.exists():
            asked.page.write_text(f"# Security\n\n{BEGIN}\n\n{END}\n", encoding="utf-8")
        head, _, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN)
        settings = sorted({name.rsplit("/", 2)[0] for name in found})
        whole = [name for name in settings if all(f"{name}/{probe}/0" in found for probe in PROBES)]
        text = wrapped("\n\n".join(section(found, name) for name in whole)).strip()
        asked.page.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
