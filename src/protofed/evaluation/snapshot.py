"""How a run ended, for the report: who holds what, which classes are mistaken, where features lie."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.engines.base import Engine
from protofed.engines.client_group import Group, State
from protofed.errors import UserError
from protofed.evaluation.accuracy import models_of, sent_to
from protofed.internal.schema import made
from protofed.internal.tensor_files import read_tensors, write_tensors
from protofed.messages import Broadcast
from protofed.methods.base import Method
from protofed.prototypes import Prototypes, class_means, nearest_class
from protofed.randomness import generator

CLIENTS = 50
"""Clients in a snapshot, at most."""
POINTS = 300
"""Test images, at most, that are shown by their features."""
IMAGES = 200
"""Test images of each client, at most, in the confusion matrix."""
PROTOTYPES = 100
"""Prototypes of a set, at most, that are shown."""


@dataclass(frozen=True)
class Snapshot:
    """A run's end. Points are test images, prototypes those of `kinds`; -1 stands for no client or domain."""

    model: str  # own or global
    rule: str
    classes: list[str]
    domains: list[str]
    kinds: list[str]  # local, and the names of the server's sets
    holds: Tensor  # [clients, C]: training samples
    homes: Tensor  # [clients]: domains
    confusion: Tensor  # [C, C]: true class, answer
    features: Tensor  # [n, D]
    points: Tensor  # [n, 4]: class, answer, client, domain
    prototypes: Tensor  # [p, D]
    marks: Tensor  # [p, 3]: kind, class, client
    names: list[str] = field(default_factory=list)  # of clients; empty strings, or none, where the data have no names

    def write(self, path: Path) -> None:
        """As a safetensors file."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rest = {name: json.dumps(value) for name, value in vars(self).items() if not isinstance(value, Tensor)}
        write_tensors(path, tensors, rest)

    @classmethod
    def read(cls, path: Path) -> Snapshot:
        """What `write` wrote."""
        try:
            tensors, about = read_tensors(path)
            rest: dict[str, Any] = {name: json.loads(value) for name, value in about.items()}
            return made("snapshot", cls, {**rest, **tensors})._checked()
        except (SafetensorError, OSError, ValueError, RecursionError) as error:  # UserError is a ValueError
            raise UserError("FILE", str(path), f"it cannot be read: {error}") from None

    def _checked(self) -> Snapshot:
        """The same, if its tensors are of the shapes above, and few enough to be shown."""
        (points, size), classes = self.features.shape if self.features.dim() == 2 else (0, 0), len(self.classes)
        number, clients = (
            len(self.prototypes) if self.prototypes.dim() else 0,
            len(self.homes) if self.homes.dim() else 0,
        )
        shapes = {
            "holds": (clients, classes),
            "homes": (clients,),
            "confusion": (classes, classes),
            "features": (points, size),
            "points": (points, 4),
            "prototypes": (number, size),
            "marks": (number, 3),
        }
        for name, shape in shapes.items():
            found: Tensor = getattr(self, name)
            kind = torch.float32 if name in ("features", "prototypes") else torch.int64
            if found.shape != shape or found.dtype != kind or not bool(found.isfinite().all()):
                raise UserError(name, f"{found.dtype} {list(found.shape)}", f"it must be {kind} {list(shape)}, finite")
        if self.names and len(self.names) != clients:
            raise UserError("names", len(self.names), f"there are {clients} clients")
        if points > POINTS or number > PROTOTYPES * len(self.kinds):
            raise UserError("points", max(points, number), "a snapshot does not hold that many")
        return self


@torch.no_grad()
def take_snapshot(engine: Engine, broadcast: Broadcast, seed: int, participants: Sequence[int]) -> Snapshot:
    """A snapshot by the model, test and rule of the method's score.

    Args:
        engine: holds the clients' models and data.
        broadcast: what the server would send next.
        seed: of the draws of clients and images.
        participants: clients of the last round, in the order of the broadcast's sets of clients' prototypes.

    Clients of another feature size than the first group's are left out.
    """
    federation = engine.federation
    draws = generator(seed, "look")
    chosen = sorted(torch.randperm(len(federation.clients), generator=draws)[:CLIENTS].tolist())
    confusion = torch.zeros(2 * (len(federation.classes),), dtype=torch.int64)
    views = []
    for group in engine.groups:
        sent = sent_to(engine.method, group, broadcast)
        for row, member in enumerate(group.members):
            if member in chosen and group.feature_size == engine.groups[0].feature_size:
                view = _view(engine, broadcast, group, row, sent, draws)
                confusion += view.confusion
                views.append(view)
    few = max(1, POINTS // len(chosen))
    kinds, marked = server_sets(engine.method, broadcast, engine.groups[0].feature_size, participants)
    vectors, marks = (torch.cat(part) for part in zip(*(view.means for view in views), *marked, strict=True))
    kept = torch.cat([_some(torch.nonzero(marks[:, 0] == kind).flatten(), draws) for kind in range(len(kinds))])
    homes = [-1 if client.domain is None else client.domain for client in federation.clients]
    model, _, rule = engine.method.score.split("/")
    return Snapshot(
        model=model,
        rule=rule,
        classes=list(federation.classes),
        domains=list(federation.domains),
        kinds=kinds,
        holds=federation.counts,
        homes=torch.tensor(homes),
        confusion=confusion,
        features=torch.cat([view.features[:few] for view in views]).float().cpu(),
        points=torch.cat([view.points[:few] for view in views]),
        prototypes=vectors[kept].float(),
        marks=marks[kept, :3],
        names=[client.name for client in federation.clients],
    )


class _View(NamedTuple):
    """One client's part of a snapshot."""

    means: tuple[Tensor, Tensor]  # class means of its training data, and their marks
    features: Tensor  # [n, D]
    points: Tensor  # [n, 4]
    confusion: Tensor  # [C, C]


def _view(
    engine: Engine, broadcast: Broadcast, group: Group, row: int, sent: Sequence[Broadcast], draws: torch.Generator
) -> _View:
    """What one client's model makes of some of its test images."""
    asked, test, _ = engine.method.score.split("/")
    classes, member = len(engine.federation.classes), group.members[row]
    models = models_of(engine.method, group, range(row, row + 1), sent)
    state = models.get(asked, models["own"])
    means = class_means(*engine.embed(group, [row], state), classes)
    rows = torch.arange(len(group.test.labels)) if test == "all" else group.clients[row].own
    rows = rows[torch.randperm(len(rows), generator=draws)[:IMAGES]]
    images = group.inputs(group.test.x[rows], [row])
    features, answer = answers_of(engine, broadcast, group, row, state, images, means)
    labels, domains, answer = group.test.labels[rows], group.test.domains[rows], answer.cpu()
    places = (labels * classes + answer)[answer >= 0]  # without any prototype there is no answer
    confusion = torch.bincount(places, minlength=classes**2).view(classes, classes)
    points = torch.stack([labels, answer, torch.full_like(labels, member), domains], 1)
    return _View(described(means.take(0), 0, member), features, points, confusion)


def answers_of(
    engine: Engine, broadcast: Broadcast, group: Group, row: int, state: State, images: Tensor, means: Prototypes
) -> tuple[Tensor, Tensor]:
    """Features [n, D] of images by a client's model, and answers [n] by the rule of the score, -1 without prototypes.

    `means` are the client's class means [1, C, 1, D], the prototypes where the method has none.
    """
    rule = engine.method.score.split("/")[2]
    features, logits = engine.forward(group, state, images)
    answer = logits.argmax(-1)
    if rule == engine.method.rule:
        answer = engine.answers(group, state, engine.turns_after(group, [row], broadcast), images).argmax(-1)
    elif rule == "nearest":
        references = engine.method.references(broadcast)
        answer = nearest_class(features, means if references is None else references)
    return features[0], answer[0]


def server_sets(
    method: Method, broadcast: Broadcast, size: int, participants: Sequence[int]
) -> tuple[list[str], list[tuple[Tensor, Tensor]]]:
    """The kinds of prototypes, local ones first, and those of the server's sets with their marks."""
    kinds, marked = ["local"], []
    for name, sets in broadcast.prototypes.items():
        if sets.vectors.shape[-1] == size:
            several = sets.counts.dim() == 3
            owned = several and len(sets.counts) == len(participants) and method.sets_are_of_clients()
            for place in range(len(sets.counts) if several else 1):
                found = sets.take(place) if several else sets
                marked.append(described(found, len(kinds), participants[place] if owned else -1))
            kinds.append(name)
    return kinds, marked


def described(found: Prototypes, kind: int, client: int) -> tuple[Tensor, Tensor]:
    """The prototypes of a set [C, M, D], one after the other, and what they are: kind, class, client, slot."""
    classes, slots = found.filled.nonzero().cpu().unbind(1)
    marks = torch.stack([torch.full_like(classes, kind), classes, torch.full_like(classes, client), slots], 1)
    return found.vectors[found.filled].cpu(), marks


def _some(rows: Tensor, draws: torch.Generator) -> Tensor:
    """Not too many."""
    return rows[torch.randperm(len(rows), generator=draws)[:PROTOTYPES].sort().values]
