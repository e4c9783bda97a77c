"""How features and prototypes move from round to round, for the report: the same test samples at a few rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.data.federation import Federation
from protofed.data.images import fit_bytes
from protofed.data.samples import is_picture
from protofed.engines.base import Engine
from protofed.engines.client_group import Group
from protofed.errors import UserError
from protofed.evaluation.accuracy import models_of, sent_to
from protofed.evaluation.snapshot import answers_of, described, server_sets
from protofed.internal.schema import made
from protofed.internal.tensor_files import read_tensors, write_tensors
from protofed.messages import Broadcast
from protofed.prototypes import class_means
from protofed.randomness import generator

ROUNDS = 30
"""Rounds that are kept, at most."""
CLIENTS = 10
"""Clients whose test samples and class means are kept, at most."""
POINTS = 300
"""Test samples, at most, of all of them together."""
PROTOTYPES = 100
"""Class means of clients, at most, and as many prototypes of the server."""
SIZE = 128
"""Numbers of a feature that are kept, at most: longer ones are projected at random, which keeps distances."""
SIDE = 32
"""Pixels of a picture's side, at most."""
TEXT = 200
"""Letters of a row or a text, at most."""
TRAINING = 200
"""Training samples of a client, at most, whose mean by class is its prototype."""
LARGEST = 6 * 2**20
"""Bytes of the file, at most: 30 rounds of 300 features and 200 prototypes of 128 numbers, and 300 pictures."""


class Frame(NamedTuple):
    """One round."""

    features: Tensor  # float16 [n, d]
    answers: Tensor  # int16 [n]; -1 for none
    vectors: Tensor  # float16 [p, d]
    marks: Tensor  # int32 [p, 4]: kind, class, client (-1 for nobody's), slot


@dataclass(frozen=True)
class Motion:
    """The same test samples and the prototypes at some rounds of a run; `own` or `global` is whose model it is."""

    model: str
    rule: str
    classes: list[str]
    domains: list[str]
    kinds: list[str]  # of marks: local, and the names of the server's sets
    rounds: list[int]
    rows: list[str]  # what samples that are no pictures say, if anything
    points: Tensor  # int32 [n, 3]: class, client, domain
    pictures: Tensor  # uint8 [n, 1 or 3, height, width]; [0] where samples are no pictures
    features: Tensor  # float16 [rounds, n, d]
    answers: Tensor  # int16 [rounds, n]
    vectors: Tensor  # float16 [p, d]: of all rounds, one after the other
    marks: Tensor  # int32 [p, 5]: the place of the round, kind, class, client, slot

    def with_frame(self, number: int, frame: Frame) -> Motion:
        """The same with another round."""
        place = torch.full_like(frame.marks[:, :1], len(self.rounds))
        return replace(
            self,
            rounds=[*self.rounds, number],
            features=torch.cat([self.features, frame.features.unsqueeze(0)]),
            answers=torch.cat([self.answers, frame.answers.unsqueeze(0)]),
            vectors=torch.cat([self.vectors, frame.vectors]),
            marks=torch.cat([self.marks, torch.cat([place, frame.marks], 1)]),
        )

    def upto(self, number: int) -> Motion:
        """The same without later rounds than this one."""
        kept = sum(at <= number for at in self.rounds)
        there = self.marks[:, 0] < kept
        return replace(
            self,
            rounds=self.rounds[:kept],
            features=self.features[:kept],
            answers=self.answers[:kept],
            vectors=self.vectors[there],
            marks=self.marks[there],
        )

    def write(self, path: Path) -> None:
        """As a safetensors file."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        rest = {name: json.dumps(value) for name, value in vars(self).items() if not isinstance(value, Tensor)}
        write_tensors(path, tensors, rest, alone=True)

    @classmethod
    def read(cls, path: Path) -> Motion:
        """What `write` wrote."""
        try:
            if path.stat().st_size > LARGEST:
                raise UserError("size", path.stat().st_size, f"it has {LARGEST} bytes at most")
            tensors, about = read_tensors(path)
            rest = {name: json.loads(value) for name, value in about.items()}
            return made("motion", cls, {**rest, **tensors})._checked()
        except (SafetensorError, OSError, ValueError, RecursionError) as error:  # UserError is a ValueError
            raise UserError("FILE", str(path), f"it cannot be read: {error}") from None

    def _checked(self) -> Motion:
        """The same, if its tensors are of the shapes above, and what they name is there."""
        rounds, points, size = self.features.shape if self.features.dim() == 3 else (0, 0, 0)
        number = len(self.marks) if self.marks.dim() else 0
        pictures = (points, *self.pictures.shape[1:]) if self.pictures.dim() == 4 else (0,)
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "points": ((points, 3), torch.int32),
            "pictures": (pictures, torch.uint8),
            "features": ((len(self.rounds), points, size), torch.float16),
            "answers": ((rounds, points), torch.int16),
            "vectors": ((number, size), torch.float16),
            "marks": ((number, 5), torch.int32),
        }
        for name, (shape, kind) in shapes.items():
            found: Tensor = getattr(self, name)
            if found.shape != shape or found.dtype != kind or not bool(found.isfinite().all()):
                raise UserError(name, f"{found.dtype} {list(found.shape)}", f"it must be {kind} {list(shape)}, finite")
        if self.pictures.dim() == 4 and (self.pictures.shape[1] not in (1, 3) or max(self.pictures.shape[2:]) > SIDE):
            raise UserError("pictures", list(self.pictures.shape), f"they are grey or coloured, of {SIDE} pixels")
        if self.rounds != sorted({*self.rounds}) or not rounds or self.rounds[0] < 1:
            raise UserError("rounds", self.rounds, "there must be one or more, in their order")
        if self.rows and len(self.rows) != points:
            raise UserError("rows", len(self.rows), f"there are {points} samples")
        classes, domains = len(self.classes), len(self.domains)
        _within("points", self.points, (0, 0, 0), (classes, None, domains))
        _within("answers", self.answers.reshape(-1, 1), (-1,), (classes,))
        _within("marks", self.marks, (0, 0, 0, -1, 0), (rounds, len(self.kinds), classes, None, None))
        return self


def _within(name: str, found: Tensor, low: Sequence[int], end: Sequence[int | None]) -> None:
    """Raise unless the numbers of each column lie in its range."""
    for column, (first, last) in zip(found.unbind(1), zip(low, end, strict=True), strict=True):
        if len(column) and not (first <= int(column.min()) and (last is None or int(column.max()) < last)):
            raise UserError(name, f"{int(column.min())} to {int(column.max())}", f"it must be from {first} to {last}")


def key_rounds(rounds: int) -> frozenset[int]:
    """The rounds that are kept of so many: all, or thirty, closer together at the beginning, where most moves.

    Example:
        >>> sorted(key_rounds(100))[:6], len(key_rounds(100)), max(key_rounds(100))
        ([1, 2, 3, 4, 6, 8], 30, 100)
    """
    if rounds <= ROUNDS:
        return frozenset(range(1, rounds + 1))
    steps = ROUNDS - 1
    return frozenset(max(n + 1, round(1 + (rounds - 1) * (n / steps) ** 1.5)) for n in range(ROUNDS))


class Recorder:
    """Takes the frames of a run: of clients and test samples that are chosen once, from its seed and its first data."""

    def __init__(self, engine: Engine, federation: Federation, seed: int, last: int) -> None:
        """`federation` is what clients hold in the first round, `last` the number of the last round."""
        self.engine, self.seed, self.due = engine, seed, key_rounds(last)
        draws = generator(seed, "motion")
        order = torch.randperm(len(federation.clients), generator=draws).tolist()
        size = engine.groups[0].feature_size
        like = {member: group for group in engine.groups if group.feature_size == size for member in group.members}
        numbers = list(federation.members)
        self.clients = sorted([numbers[at] for at in order if numbers[at] in like][:CLIENTS])
        few = POINTS // len(self.clients)
        self.rows: dict[int, Tensor] = {}
        for member in self.clients:
            own = federation.members[member].own
            self.rows[member] = own[torch.randperm(len(own), generator=draws)[:few]]
        kept = min(size, SIZE)
        self.projection = None
        if size > kept:
            drawn = torch.randn(size, kept, generator=generator(seed, "motion", "projection"), dtype=torch.float64)
            self.projection = torch.linalg.qr(drawn).Q * (size / kept) ** 0.5
        self.motion = self._empty(federation, {member: like[member] for member in self.clients}, kept)

    def _empty(self, federation: Federation, groups: dict[int, Group], size: int) -> Motion:
        """The samples, before the first round."""
        pools = [(groups[member].test, rows, member) for member, rows in self.rows.items()]
        points = [
            torch.stack([pool.labels[rows], torch.full_like(rows, member), pool.domains[rows]], 1)
            for pool, rows, member in pools
        ]
        seen = [pool.x[rows] for pool, rows, _ in pools]
        encoding = None if self.engine.experiment.encoder else federation.encoding
        texts = [encoding.show(sample)[:TEXT] for part in seen for sample in part] if encoding else []
        number = sum(map(len, points))
        model, _, rule = self.engine.method.score.split("/")
        return Motion(
            model=model,
            rule=rule,
            classes=list(federation.classes),
            domains=list(federation.domains),
            kinds=["local"],
            rounds=[],
            rows=texts,
            points=torch.cat(points).to(torch.int32),
            pictures=_pictures(seen) if all(map(is_picture, seen)) else torch.zeros(0, dtype=torch.uint8),
            features=torch.zeros(0, number, size, dtype=torch.float16),
            answers=torch.zeros(0, number, dtype=torch.int16),
            vectors=torch.zeros(0, size, dtype=torch.float16),
            marks=torch.zeros(0, 5, dtype=torch.int32),
        )

    def restore(self, path: Path, played: int) -> None:
        """Go on after so many rounds with what a file has kept of them."""
        if path.is_file():
            self.motion = Motion.read(path).upto(played)

    @torch.no_grad()
    def keep(self, number: int, broadcast: Broadcast, participants: Sequence[int]) -> None:
        """Keep a round: what the models are after it, and what the server would send next."""
        parts = []
        for group in self.engine.groups:
            sent = sent_to(self.engine.method, group, broadcast)
            for row, member in enumerate(group.members):
                if member in self.rows:
                    parts.append((member, *self._client(group, row, sent, broadcast)))
        parts.sort(key=lambda part: part[0])
        _, features, answers, vectors, marks = zip(*parts, strict=True)
        own = _first(torch.cat(vectors), torch.cat(marks), (1, 2))
        kinds, marked = server_sets(self.engine.method, broadcast, self.engine.groups[0].feature_size, participants)
        sets = [(torch.zeros(0, own[0].shape[1]), torch.zeros(0, 4, dtype=torch.int64)), *marked]
        vectors_of, marks_of = (torch.cat(part) for part in zip(*sets, strict=True))
        server = _first(vectors_of, marks_of, (3, 0, 2, 1))
        merged = list(dict.fromkeys([*self.motion.kinds, *kinds]))
        server[1][:, 0] = torch.tensor([merged.index(name) for name in kinds])[server[1][:, 0]]
        frame = Frame(
            self._kept(torch.cat(features)),
            torch.cat(answers).to(torch.int16),
            self._kept(torch.cat([own[0], server[0]])),
            torch.cat([own[1], server[1]]).to(torch.int32),
        )
        self.motion = replace(self.motion, kinds=merged).with_frame(number, frame)

    def _client(
        self, group: Group, row: int, sent: Sequence[Broadcast], broadcast: Broadcast
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features and answers of one client's test samples, and the class means of some of its training samples."""
        engine, member = self.engine, group.members[row]
        models = models_of(engine.method, group, range(row, row + 1), sent)
        state = models.get(self.motion.model, models["own"])
        train = group.clients[row].train
        some = torch.randperm(len(train), generator=generator(self.seed, "motion", member))[:TRAINING]
        embedded, _ = engine.forward(group, state, group.inputs(train.x[some], [row]))
        means = class_means(embedded, train.labels[some].to(embedded.device).unsqueeze(0), len(self.motion.classes))
        images = group.inputs(group.test.x[self.rows[member]], [row])
        features, answers = answers_of(engine, broadcast, group, row, state, images, means)
        return features.cpu(), answers.cpu(), *described(means.take(0), 0, member)

    def _kept(self, vectors: Tensor) -> Tensor:
        """In the form of the file: what is too large for it, or not a number, is cut to what is not."""
        vectors = torch.nan_to_num(vectors.double())
        if self.projection is not None:
            vectors = vectors @ self.projection
        largest = torch.finfo(torch.float16).max
        return vectors.clamp(-largest, largest).half()


def _first(vectors: Tensor, marks: Tensor, by: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The first prototypes by some columns of their marks, so that the same ones are kept in every round."""
    keys = marks[:, list(by)].tolist()
    order = sorted(range(len(marks)), key=keys.__getitem__)[:PROTOTYPES]
    return vectors[order], marks[order].clone()


def _pictures(parts: Sequence[Tensor]) -> Tensor:
    """Pictures of one size, grey or coloured, as small as they are shown."""
    side = min(SIDE, max(max(part.shape[2:]) for part in parts))
    channels = 3 if any(part.shape[1] == 3 for part in parts) else 1
    return torch.cat([fit_bytes(part, (channels, side, side)) for part in parts])
