"""Segments: the samples of each (client, class) pair as one padded block, so that all pairs cluster at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.prototypes.type import Prototypes


class Segments(NamedTuple):
    """S non-empty (client, class) pairs, each with up to m rows in their original order."""

    clients: Tensor  # [S]
    classes: Tensor  # [S]
    rows: Tensor  # [S, m]: each sample's row at its client; 0 where padded
    mask: Tensor  # [S, m]: which entries are samples
    grid: tuple[int, int]  # N clients, C classes

    def gather(self, values: Tensor) -> Tensor:
        """The samples' values, [N, n, D], segment by segment: [S, m, D], zeros where padded."""
        return values[self.clients.unsqueeze(-1), self.rows] * self.mask.unsqueeze(-1)

    def scatter(self, vectors: Tensor, counts: Tensor) -> Prototypes:
        """Each segment's prototypes, [S, M, D] and [S, M], at their place in the grid: [N, C, M, D]."""
        grid = Prototypes(
            vectors.new_zeros(*self.grid, *vectors.shape[1:]), counts.new_zeros(*self.grid, counts.shape[1])
        )
        grid.vectors[self.clients, self.classes] = vectors
        grid.counts[self.clients, self.classes] = counts
        return grid


def segments(labels: Tensor, classes: int) -> Segments:
    """The segments of `labels`, [N, n], where −1 marks a padding row."""
    if labels.numel() and int(labels.max()) >= classes:
        raise UserError("labels", int(labels.max()), f"with {classes} classes a label is at most {classes - 1}")
    clients = labels.shape[0]
    owner, row = (labels >= 0).nonzero(as_tuple=True)
    pair = owner * classes + labels[owner, row]
    pair, order = pair.sort(stable=True)

    sizes = pair.bincount(minlength=clients * classes)
    first = sizes.cumsum(0) - sizes
    rank = torch.arange(len(pair), device=pair.device) - first[pair]
    held = sizes.nonzero().squeeze(-1)
    segment = torch.zeros_like(sizes)
    segment[held] = torch.arange(len(held), device=pair.device)

    longest = max(1, int(sizes.max())) if len(pair) else 1
    rows = labels.new_zeros((len(held), longest), dtype=torch.int64)
    rows[segment[pair], rank] = row[order]
    mask = torch.arange(longest, device=pair.device) < sizes[held].unsqueeze(-1)
    return Segments(held // classes, held % classes, rows, mask, (clients, classes))


def exact_distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances from differences: equal points are at 0, whatever else is in the batch.

    The faster |a|² − 2ab + |b|² would lose both.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
