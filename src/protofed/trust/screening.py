"""Screening: nothing is computed from a message before its form is known to be the expected one."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.errors import RefusedError
from protofed.messages import STORED, Broadcast, Message, Upload, tensors_in
from protofed.prototypes import Prototypes

SLOTS = 4096
"""Prototypes of a class that a message may hold: more than any clustering of a client's data gives."""

POOL = 65_536
"""The same of what a server sends: those of all clients together."""

UNPACKED = 2**26
"""Bytes that a set of prototypes may take when it is unpacked: a round has as much room for each of its clients."""

FAR = 100.0
"""Times the median of a round: one so long outweighs all others. It may be honest where most hardly move."""


MOST = 3
"""Times the median of a round: what a client counts for at most, of the samples that it says it has."""

STEPS = 2**31
"""What a turn adds at most to a number that its state counts in, such as BatchNorm's of batches."""


@dataclass(frozen=True)
class Schema:
    """The form of a message: names, types and shapes of its weights, prototypes and numbers."""

    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]  # weights and numbers, by their names on the wire
    sets: Mapping[str, tuple[torch.dtype, int, int]]  # of prototypes: type, classes, feature size
    pooled: bool = False  # prototypes may be those of several clients
    slots: int = SLOTS  # prototypes of a class
    unpacked: int = UNPACKED  # bytes of a set of prototypes, with its empty places

    @classmethod
    def of(cls, example: Message, slots: int = SLOTS) -> Schema:
        """The form of one client's message, with at most so many prototypes of a class."""
        parts = [("weights", example.weights), ("numbers", example.numbers), ("sums", example.sums)]
        tensors = {f"{part}/{n}": (t.dtype, tuple(t.shape)) for part, some in parts for n, t in some.items()}
        found = example.prototypes.items()
        sets = {name: (p.vectors.dtype, p.vectors.shape[-3], p.vectors.shape[-1]) for name, p in found}
        return cls(tensors, sets, slots=slots)

    @classmethod
    def of_broadcast(
        cls, flat: Mapping[str, Tensor], model: Mapping[str, Tensor], classes: int, feature_size: int, largest: int
    ) -> Schema:
        """The form that what a server sends must have to fit a client's model; what it sends is its choice.

        No set of prototypes may take more than `largest` bytes.
        """
        tensors = {}
        for path, tensor in flat.items():
            part, _, name = path.partition("/")
            if part == "weights" and name in model:
                tensors[path] = (model[name].dtype, tuple(model[name].shape))
            elif part == "numbers" and tensor.dtype in STORED:
                tensors[path] = (tensor.dtype, tuple(tensor.shape))
            elif part != "prototypes":
                raise RefusedError(f"the model has no {path}")
        dtype = next(tensor.dtype for tensor in model.values() if tensor.is_floating_point())
        names = {path.removeprefix("prototypes/").rpartition("/")[0] for path in flat if path.startswith("prototypes/")}
        sets = dict.fromkeys(names, (dtype, classes, feature_size))
        return cls(tensors, sets, pooled=True, slots=POOL, unpacked=largest)

    def check(self, flat: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a message, if it has this form and every number in it is finite."""
        packed = {f"prototypes/{name}/{part}" for name in self.sets for part in ("vectors", "index", "shape")}
        if flat.keys() != self.tensors.keys() | packed:
            raise RefusedError("it holds other tensors than expected")
        for name, (dtype, shape) in self.tensors.items():
            if (flat[name].dtype, tuple(flat[name].shape)) != (dtype, shape):
                raise RefusedError(f"{name} has another type or shape than expected")
        for name in self.sets:
            self._check_set(name, *(flat[f"prototypes/{name}/{part}"] for part in ("vectors", "index", "shape")))
        for name, tensor in flat.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise RefusedError(f"{name} holds a number that is not finite")
        return flat

    def _check_set(self, name: str, vectors: Tensor, index: Tensor, shape: Tensor) -> None:
        """The packed form of prototypes, before it is unpacked into a shape that the message names."""
        dtype, classes, size = self.sets[name]
        if (vectors.dtype, index.dtype, shape.dtype) != (dtype, torch.int32, torch.int32):
            raise RefusedError(f"the prototypes {name} have another type than expected")
        if vectors.shape != (*vectors.shape[:1], size) or index.shape != (*vectors.shape[:1], 2) or shape.dim() != 1:
            raise RefusedError(f"the prototypes {name} have another shape than expected")
        found = shape.tolist()
        right = len(found) == 3 or (self.pooled and len(found) > 3)
        if not right or (found[-3], found[-1]) != (classes, size) or min(found) < 1:
            raise RefusedError(f"the prototypes {name} are of the shape {found}")
        if math.prod(found[:-3]) * found[-2] > self.slots or math.prod(found) * dtype.itemsize > self.unpacked:
            raise RefusedError(f"there are too many prototypes {name}")
        slots, counts = index[:, 0], index[:, 1]
        if len(slots) and not (int(slots.min()) >= 0 and int(slots.max()) < math.prod(found[:-1])):
            raise RefusedError(f"the prototypes {name} are of classes that there are not")
        if len(set(slots.tolist())) != len(slots) or (len(counts) and int(counts.min()) < 1):
            raise RefusedError(f"the prototypes {name} repeat a place or count nothing")


def refusals(
    uploads: Upload,
    sent: Broadcast,
    declared: Sequence[int] | None,
    lengths: bool = False,
    named: Tensor | None = None,
) -> dict[int, str]:
    """Why uploads of a round, by their place in it, are rejected: by the same rules for every engine.

    A number that is not finite, counts below nothing, state in whole numbers that no training counts to, prototypes of
    classes that the client has not `named` [N, C], what is FAR times as long as the median, where `lengths` are
    compared, and, where samples are `declared` and nothing is noisy: a variance below zero, counts that are not whole
    or that the client's declared number of training samples does not allow.
    """
    sets = uploads.prototypes.items()
    rest = [*uploads.weights.values(), *uploads.numbers.values(), *uploads.sums.values()]
    tensors = [*rest, *(part for _, found in sets for part in found)]
    if not tensors or not len(tensors[0]):
        return {}
    checks = {"it holds a number that is not finite": _any([~tensor.isfinite() for tensor in tensors])}
    spreads = [tensor for name, tensor in uploads.weights.items() if name.endswith("running_var")]
    if spreads and declared is not None:
        checks["it holds a variance below zero"] = _any([tensor < 0 for tensor in spreads])
    counts = [found.counts.flatten(1) for _, found in sets]
    samples = [uploads.numbers["samples"]] if "samples" in uploads.numbers else []
    if counts or samples:
        less = [*(some < 0 for some in counts), *(some < 1 for some in samples)]
        checks["it counts less than nothing"] = _any(less)
    if declared is not None and (counts or samples):
        checks["it counts what is not whole"] = _any([some != some.round() for some in (*counts, *samples)])
        most = torch.tensor(declared, device=tensors[0].device)
        totals = [*(some.sum(1) for some in counts), *samples]
        checks["it counts more samples than it declared"] = _any([total > most for total in totals])
    whole = [_miscounted(tensor, sent.weights.get(name)) for name, tensor in uploads.weights.items() if _whole(tensor)]
    if whole:
        checks["its state counts what no training does"] = _any(whole)
    if named is not None and counts:
        held = [found.present for _, found in sets if found.present.shape == named.shape]
        checks["it has prototypes of classes that it did not name"] = _any([some & ~named for some in held])
    if lengths:
        checks |= _too_long(uploads, sent)
    failed = torch.stack(list(checks.values()), 1).tolist()
    return {
        row: next(reason for reason, bad in zip(checks, found, strict=True) if bad)
        for row, found in enumerate(failed)
        if any(found)
    }


def _too_long(uploads: Upload, sent: Broadcast) -> dict[str, Tensor]:
    """Whose update, prototypes or sums are far longer than the others', by what is said of it."""
    checks = {}
    changes = [change.norm(dim=1) for change in uploads.changes(sent).values()]
    if changes:
        checks["its update is far longer than the others'"] = _far(torch.stack(changes).norm(dim=0))
    longest = [found.vectors.norm(dim=-1).flatten(1).amax(1) for found in uploads.prototypes.values()]
    if longest:
        checks["its prototypes are far longer than the others'"] = _any([_far(some) for some in longest])
    if uploads.sums:
        each = [_far(tensor.double().view(len(tensor), -1).norm(dim=1)) for tensor in uploads.sums.values()]
        checks["its sums are far longer than the others'"] = _any(each)
    return checks


def _whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def _miscounted(tensor: Tensor, before: Tensor | None) -> Tensor:
    """Whose state in whole numbers is less than what was sent, or has grown by more than STEPS."""
    grown = tensor.double() - (0 if before is None else before.double())
    return (grown < 0) | (grown > STEPS)


def capped(uploads: Upload, times: float = MOST) -> Upload:
    """The same with nobody counted for more than so many times the median of the round.

    By the samples that clients say they have, and by those that all prototypes of a set stand for.
    """
    numbers, samples = dict(uploads.numbers), uploads.numbers.get("samples")
    if samples is not None and len(samples):
        numbers["samples"] = samples.clamp(max=(times * samples.double().median()).to(samples))
    sets = {name: Prototypes(found.vectors, _fewer(found.counts, times)) for name, found in uploads.prototypes.items()}
    return replace(uploads, numbers=numbers, prototypes=sets)


def _fewer(counts: Tensor, times: float) -> Tensor:
    """Counts [N, C, M], scaled so that a client's are at most so many times the median of clients that have some."""
    totals = counts.double().flatten(1).sum(1)
    if not bool((totals > 0).any()):
        return counts
    most = times * totals[totals > 0].median()
    if not bool((totals > most).any()):
        return counts
    scaled = (counts * (most / totals.clamp(min=1)).clamp(max=1).view(-1, 1, 1)).floor().clamp(min=1)
    return scaled.where(counts > 0, 0).to(counts)


def without(uploads: Upload, refused: Container[int]) -> Upload:
    """The uploads of the others."""
    rest = [*uploads.weights.values(), *uploads.numbers.values(), *uploads.sums.values()]
    tensors = [*rest, *(found.counts for found in uploads.prototypes.values())]
    return uploads.reorder(torch.tensor([row for row in range(len(tensors[0])) if row not in refused]).long())


def _any(found: Sequence[Tensor]) -> Tensor:
    return torch.stack([some.view(len(some), -1).any(1) for some in found]).any(0)


def _far(lengths: Tensor) -> Tensor:
    """[N]; a median of 0 says nothing."""
    bound = FAR * lengths.nan_to_num(torch.inf).median()
    return (lengths > bound) & (bound > 0)


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """What an encoded message holds, if it is one."""
    try:
        return tensors_in(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
        raise RefusedError("it is not a message") from None
