"""A look at how a run ended, for the report: who holds what, which classes are mistaken, where features lie."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protofed.errors import UserError
from protofed.evaluation.accuracy import models_of, sent_to
from protofed.internal.atomic_files import write_whole
from protofed.internal.schema import made
from protofed.prototypes import Prototypes, class_means, nearest_class
from protofed.randomness import generator

if TYPE_CHECKING:
    from protofed.runs.run import Run

CLIENTS = 50
"""So many clients at most are looked at."""
POINTS = 300
"""So many test images at most are shown, by their features."""
IMAGES = 200
"""So many test images at most are asked of each client's model for the confusion matrix."""
PROTOTYPES = 100
"""So many prototypes of a set at most are shown."""


@dataclass(frozen=True)
class Look:
    """What a look saw. Points are test images, prototypes those of `kinds`; -1 stands for no client or domain."""

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

    def write(self, path: Path) -> None:
        """As a safetensors file."""
        tensors = {name: value.contiguous() for name, value in vars(self).items() if isinstance(value, Tensor)}
        rest = {name: json.dumps(value) for name, value in vars(self).items() if not isinstance(value, Tensor)}
        write_whole(path, lambda draft: save_file(tensors, draft, rest))

    @classmethod
    def read(cls, path: Path) -> Look:
        """What `write` wrote."""
        try:
            with safe_open(path, framework="pt") as file:
                rest: dict[str, Any] = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            return made("look", cls, {**rest, **tensors})._checked()
        except (SafetensorError, OSError, ValueError, RecursionError) as error:  # UserError is a ValueError
            raise UserError(str(path), " ".join(str(error).split()), "it cannot be read") from None

    def _checked(self) -> Look:
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
        if points > POINTS or number > PROTOTYPES * len(self.kinds):
            raise UserError("points", [points, number], "there are more than a look takes")
        return self


@torch.no_grad()
def look(run: Run) -> Look:
    """By the model, test and rule of the method's score; clients of another feature size than the first do without."""
    federation, method = run.federation, run.method
    asked, test, rule = method.score.split("/")
    draws = generator(run.experiment.seed, "look")
    chosen = sorted(torch.randperm(len(federation.clients), generator=draws)[:CLIENTS].tolist())
    few = max(1, POINTS // len(chosen))
    classes, size = len(federation.classes), run.engine.groups[0].feature_size
    confusion = torch.zeros(classes, classes, dtype=torch.int64)
    features, points, shown = [], [], []
    for group in run.engine.groups:
        sent = sent_to(method, group, run.broadcast)
        for row, member in enumerate(group.members):
            if member not in chosen or group.feature_size != size:
                continue
            models = models_of(group, range(row, row + 1), sent)
            state = models.get(asked, models["own"])
            means = class_means(*run.engine.embed(group, [row], state), classes)
            shown.append(_marked(means.take(0), 0, member))
            rows = torch.arange(len(group.test.labels)) if test == "all" else group.clients[row].own
            rows = rows[torch.randperm(len(rows), generator=draws)[:IMAGES]]
            found, logits = run.engine.forward(group, state, group.pixels(group.test.images[rows]))
            references = method.references(run.broadcast)
            answer = logits.argmax(-1)
            if rule == "nearest":
                answer = nearest_class(found, means if references is None else references)
            labels, domains, answer = group.test.labels[rows], group.test.domains[rows], answer[0].cpu()
            places = (labels * classes + answer)[answer >= 0]  # without any prototype there is no answer
            confusion += torch.bincount(places, minlength=classes**2).view(classes, classes)
            features.append(found[0, :few])
            points.append(torch.stack([labels, answer, torch.full_like(labels, member), domains], 1)[:few])
    kinds = ["local"]
    for name, sets in run.broadcast.prototypes.items():
        if sets.vectors.shape[-1] == size:
            of_clients = sets.counts.dim() == 3
            owners = run.history[-1]["participants"] if of_clients else [-1]
            for place, owner in enumerate(owners):
                shown.append(_marked(sets.take(place) if of_clients else sets, len(kinds), owner))
            kinds.append(name)
    vectors, marks = (torch.cat(part) for part in zip(*shown, strict=True))
    kept = torch.cat([_some(torch.nonzero(marks[:, 0] == kind).flatten(), draws) for kind in range(len(kinds))])
    homes = [-1 if client.domain is None else client.domain for client in federation.clients]
    return Look(
        model=asked,
        rule=rule,
        classes=list(federation.classes),
        domains=list(federation.domains),
        kinds=kinds,
        holds=federation.counts,
        homes=torch.tensor(homes),
        confusion=confusion,
        features=torch.cat(features).float().cpu(),
        points=torch.cat(points),
        prototypes=vectors[kept].float(),
        marks=marks[kept],
    )


def _marked(found: Prototypes, kind: int, client: int) -> tuple[Tensor, Tensor]:
    """The prototypes of a set [C, M, D], one after the other, and what they are."""
    classes = found.filled.nonzero()[:, 0].cpu()
    marks = torch.stack([torch.full_like(classes, kind), classes, torch.full_like(classes, client)], 1)
    return found.vectors[found.filled].cpu(), marks


def _some(rows: Tensor, draws: torch.Generator) -> Tensor:
    """Not too many."""
    return rows[torch.randperm(len(rows), generator=draws)[:PROTOTYPES].sort().values]
