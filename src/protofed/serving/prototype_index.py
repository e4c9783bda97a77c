"""The prototypes of an exported model: where each comes from, and which is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.errors import UserError, listed
from protofed.prototypes import Prototypes

AT_ONCE = 2**22
"""Distances held at once: 16 MB, which stay near the processor."""


class Found(NamedTuple):
    """Of each query the nearest classes, nearest first: [n, top]."""

    classes: Tensor
    distances: Tensor
    slots: Tensor  # of the class's prototype that is nearest


class PrototypeIndex(NamedTuple):
    """Prototypes [C, M, D], and for each slot the client it comes from and the number it has there."""

    prototypes: Prototypes
    clients: Tensor  # [C, M]; -1: of several clients
    numbers: Tensor  # [C, M]: which of that client's, or of the server's, prototypes of the class

    @classmethod
    def of(cls, prototypes: Prototypes) -> PrototypeIndex:
        """Prototypes that are nobody's in particular, numbered as they lie."""
        classes, slots = prototypes.counts.shape
        return cls(prototypes, torch.full((classes, slots), -1), torch.arange(slots).expand(classes, -1))

    @classmethod
    def of_clients(cls, prototypes: Prototypes, members: Tensor) -> PrototypeIndex:
        """Those of some clients, [N, C, M, D], side by side."""
        _, classes, slots = prototypes.counts.shape
        known = torch.stack(
            [
                members.view(-1, 1, 1).expand(-1, classes, slots),
                torch.arange(slots).expand(len(members), classes, -1),
            ],
            -1,
        )
        tags = Prototypes(known.double(), prototypes.counts).pooled().vectors.long()  # the same slots as the vectors'
        return cls(prototypes.pooled(), tags[..., 0], tags[..., 1])

    def flat(self) -> dict[str, Tensor]:
        """The file's form: one row per prototype, in the order of the classes."""
        filled = self.prototypes.filled
        return {
            "vectors": self.prototypes.vectors[filled].float(),
            "counts": self.prototypes.counts[filled].float(),
            "classes": filled.nonzero()[:, 0],
            "clients": self.clients[filled],
            "numbers": self.numbers[filled],
        }

    @classmethod
    def from_flat(cls, flat: Mapping[str, Tensor], classes: int, size: int) -> PrototypeIndex:
        """The pool that `flat` was made from; the file is somebody's word, so its form is checked."""
        named = ("counts", "classes", "clients", "numbers")
        if not {"vectors", *named} <= flat.keys():
            raise UserError(
                "prototypes", listed(sorted(flat)), "it must hold vectors, counts, classes, clients and numbers"
            )
        vectors, counts, labels, clients, numbers = (flat[name] for name in ("vectors", *named))
        if vectors.dim() != 2 or vectors.shape[1] != size or not len(vectors) or vectors.dtype != torch.float32:
            raise UserError("vectors", list(vectors.shape), f"give some of {size} numbers each, as float32")
        kinds = [flat[name].dtype for name in named]
        if any(flat[name].shape != vectors.shape[:1] for name in named) or kinds != [torch.float32, *[torch.int64] * 3]:
            raise UserError("prototypes", len(vectors), "give each a count, a class, a client and a number")
        if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise UserError("classes", f"{int(labels.min())} to {int(labels.max())}", f"there are {classes} classes")
        if not (bool(vectors.isfinite().all()) and bool((counts > 0).all())):
            raise UserError("prototypes", len(vectors), "they must be finite and stand for something")
        order = labels.argsort(stable=True)
        held = labels.bincount(minlength=classes)
        rows = labels[order]
        slots = torch.arange(len(labels)) - (held.cumsum(0) - held)[rows]
        shape = (classes, int(held.max()))
        grid = Prototypes(vectors.new_zeros(*shape, size), counts.new_zeros(shape, dtype=torch.float32))
        grid.vectors[rows, slots], grid.counts[rows, slots] = vectors[order], counts[order].float()
        found = [torch.full(shape, -1).index_put((rows, slots), part[order].long()) for part in (clients, numbers)]
        return cls(grid, *found)

    def append(self, prototypes: Prototypes) -> PrototypeIndex:
        """With the prototypes [1, M, D] of one more class, which are nobody's in particular."""
        more = PrototypeIndex.of(prototypes)
        slots = max(self.numbers.shape[1], more.numbers.shape[1])
        wide = [pool.prototypes.widen(slots) for pool in (self, more)]
        joined = Prototypes(torch.cat([one.vectors for one in wide]), torch.cat([one.counts for one in wide]))
        pairs = ((self.clients, more.clients), (self.numbers, more.numbers))
        padded = [torch.cat([_widen(part, slots) for part in pair]) for pair in pairs]
        return PrototypeIndex(joined, *padded)

    def nearest(self, features: Tensor, top: int = 1) -> Found:
        """The nearest classes of features [n, D] by their nearest prototype; only classes that have one are named."""
        vectors, counts = self.prototypes
        classes, slots, size = vectors.shape
        filled = self.prototypes.filled
        top = min(top, int(self.prototypes.present.sum()))
        # |z − u|² = |z|² + |u|² − 2 z·u. Seen from the prototypes' middle: a common offset would cost digits.
        middle = vectors[filled].mean(0)
        seen = (vectors - middle).masked_fill(~filled.unsqueeze(-1), 0).view(-1, size)
        squares = seen.square().sum(-1).masked_fill(~filled.flatten(), torch.inf)
        parts = []
        for z in torch.split(features, max(1, AT_ONCE // counts.numel())):
            scores = torch.addmm(squares, z - middle, seen.T, alpha=-2).view(-1, classes, slots)
            found = scores.amin(-1).topk(top, largest=False).indices
            each = torch.arange(len(z)).unsqueeze(-1)
            best = scores[each, found].argmin(-1)
            exact, order = (vectors[found, best] - z.unsqueeze(1)).norm(dim=-1).sort()  # the products have lost digits
            parts.append(Found(found.gather(1, order), exact, best.gather(1, order)))
        return Found(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _widen(grid: Tensor, slots: int) -> Tensor:
    return torch.nn.functional.pad(grid, (0, slots - grid.shape[1]), value=-1)
