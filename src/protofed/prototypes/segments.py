"""Segments: the samples of each (client, class) pair as one padded block, so that all pairs cluster at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from protofed.errors import UserError
from protofed.prototypes.type import Prototypes


class Segments(NamedTuple):
    """Hold the rows of each non-empty (client, class) pair as one padded block.

    There are S pairs with up to m rows each, in their original order. `segments` makes them; all pairs cluster at once.

    Args:
        clients: the client of each pair [S].
        classes: the class of each pair [S].
        rows: each sample's row at its client [S, m]; any row where padded.
        mask: which entries are samples [S, m], bool.
        grid: (N, C), the numbers of clients and classes.

    Example:
        >>> import torch
        >>> from protofed.prototypes import segments
        >>> found = segments(torch.tensor([[1, 0, 1], [1, -1, -1]]), 2)
        >>> list(zip(found.clients.tolist(), found.classes.tolist(), found.mask.sum(1).tolist()))
        [(0, 0, 1), (0, 1, 2), (1, 1, 1)]
        >>> found.gather(torch.tensor([[[5.0], [6.0], [7.0]], [[8.0], [0.0], [0.0]]])).squeeze(-1).tolist()
        [[6.0, 0.0], [5.0, 7.0], [8.0, 0.0]]
    """

    clients: Tensor
    classes: Tensor
    rows: Tensor
    mask: Tensor
    grid: tuple[int, int]

    def gather(self, values: Tensor) -> Tensor:
        """Collect the samples' values [N, n, D] segment by segment: [S, m, D], zeros where padded."""
        return torch.where(self.mask.unsqueeze(-1), values[self.clients.unsqueeze(-1), self.rows], 0)

    def each(self, work: Callable[[Segments], tuple[Tensor, Tensor]]) -> Prototypes:
        """Put what `work` makes of the segments at its place: vectors [N, C, M, D] and counts [N, C, M].

        On a CPU `work` is given segments of like length at a time, for padding takes time there; on a GPU all of them,
        for asking how long they are does.

        Args:
            work: makes prototypes [S, M, D] and counts [S, M] of segments.

        Returns:
            The prototypes of all clients and classes, M as the fullest class needs.
        """
        parts = self._by_length() if self.mask.is_cpu and len(self.mask) else [self]
        made = [(some, *work(some)) for some in parts]
        most = max(counts.shape[1] for _, _, counts in made)
        _, vectors, counts = made[0]
        grid = Prototypes(vectors.new_zeros(*self.grid, most, vectors.shape[2]), counts.new_zeros(*self.grid, most))
        for some, vectors, counts in made:
            places = some.clients, some.classes, slice(counts.shape[1])
            grid.vectors[places], grid.counts[places] = vectors, counts
        return grid

    def _by_length(self) -> list[Segments]:
        """Those whose lengths round up to the same power of two, each as wide as its longest."""
        lengths = self.mask.sum(1)
        powers = lengths.log2().ceil()
        parts = []
        for power in sorted(set(powers.tolist())):
            some = powers == power
            longest = int(lengths[some].max())
            rows, mask = self.rows[some, :longest], self.mask[some, :longest]
            parts.append(Segments(self.clients[some], self.classes[some], rows, mask, self.grid))
        return parts


_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def segments(labels: Tensor, classes: int) -> Segments:
    """Group the rows of each client by class.

    The segments are kept with the tensor: the same clients come with the same one again, and making them waits for a
    GPU.

    Args:
        labels: the clients' classes [N, n]; −1 marks a padding row.
        classes: the number of classes, C.

    Returns:
        The segments, in the order of clients and, within a client, of classes.

    Raises:
        UserError: a label is not below `classes`.

    Example:
        >>> import torch
        >>> from protofed.prototypes import segments
        >>> segments(torch.tensor([[2, 0, 2, -1]]), 3).rows.tolist()
        [[1, 0], [0, 2]]
    """
    key = (classes, labels._version)
    if labels not in _known or _known[labels][0] != key:
        _known[labels] = (key, _segments(labels, classes))
    found: Segments = _known[labels][1]
    return found


def _segments(labels: Tensor, classes: int) -> Segments:
    by_class, order = torch.where(labels < 0, classes, labels).sort(dim=-1, stable=True)  # padding last
    steps = torch.arange(classes + 1, device=labels.device).repeat(len(labels), 1)
    bounds = torch.searchsorted(by_class, steps)  # [N, C + 1]: where each class begins, and ends
    sizes = bounds.diff().flatten()

    # All that the host has to know, in one transfer.
    known = torch.stack([labels.max(), (sizes > 0).sum(), sizes.max()]).tolist() if labels.numel() else (-1, 0, 0)
    largest, number, longest = known
    if largest >= classes:
        raise UserError("labels", largest, f"with {classes} classes a label is at most {classes - 1}")

    held = (sizes == 0).view(torch.uint8).argsort(stable=True)[:number]
    client, label = held // classes, held % classes
    place = bounds[client, label].unsqueeze(-1) + torch.arange(max(1, longest), device=labels.device)
    mask = place < bounds[client, label + 1].unsqueeze(-1)
    rows = order[client.unsqueeze(-1), place.clamp(max=labels.shape[1] - 1)]
    return Segments(client, label, rows, mask, (len(labels), classes))


def patience(device: torch.device) -> int:
    """After how many steps of a loop over segments to ask if all have settled; one that has, stays as it is.

    Each on a CPU. On a GPU an answer means a wait, so only every fourth.
    """
    return 1 if device.type == "cpu" else 4


def exact_distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances from differences: equal points are at 0, whatever else is in the batch.

    The faster |a|² − 2ab + |b|² would lose both.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
