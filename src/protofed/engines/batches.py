"""Which samples a client takes in which step, and what it lost there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Samples = NDArray[np.int64]
"""Numbers of samples, or of steps, a client."""


class Schedule(NamedTuple):
    """The batches of some clients' turns: rows [clients, steps, width], -1 where there is no sample."""

    rows: Tensor
    each: Tensor  # [clients]: steps in an epoch, or the number that every client takes in place of one
    epochs: int

    @property
    def steps(self) -> Tensor:
        """[clients]: how many there are."""
        return self.each * self.epochs

    @property
    def taken(self) -> Tensor:
        """[clients, steps]: which steps each client takes; it has no more than it has batches for."""
        return torch.arange(self.rows.shape[1]) < self.steps.unsqueeze(-1)

    def of(self, clients: Sequence[int]) -> Schedule:
        """Those of some clients, in this order."""
        each = self.each[list(clients)]
        return Schedule(self.rows[list(clients), : int(each.max()) * self.epochs], each, self.epochs)

    def head(self, steps: int) -> Schedule:
        """So many steps of each epoch at most."""
        each = self.each.clamp(max=steps)
        return Schedule(self.rows[:, : int(each.max()) * self.epochs], each, self.epochs)

    def between(self, first: int, last: int) -> Schedule:
        """The steps of some epochs, each client's from step 0 on."""
        if (first, last) == (0, self.epochs):
            return self
        longest = int(self.each.max()) * (last - first)
        step = self.each.unsqueeze(-1) * first + torch.arange(longest)
        step = step.clamp(max=self.rows.shape[1] - 1).unsqueeze(-1).expand(-1, -1, self.rows.shape[2])
        part = Schedule(self.rows.gather(1, step), self.each, last - first)
        return part._replace(rows=part.rows.where(part.taken.unsqueeze(-1), -1))


def schedule(
    sizes: Sequence[int],
    batch_size: int,
    epochs: int,
    draws: Sequence[torch.Generator],
    steps: Sequence[int] | None = None,
) -> Schedule:
    """Shuffled batches for some epochs; a last batch of one sample joins the one before it.

    With `steps` each client takes so many in place of every epoch, from one shuffled pass over its samples into the
    next.
    """
    # In numpy, whose operations on small arrays take a fraction of torch's time: a GPU waits for this.
    samples = np.array(sizes)
    batches, joins = steps_in_epoch(samples, batch_size)
    each = batches if steps is None else np.array(steps)
    passes = -(-each * epochs // batches)
    orders = torch.zeros(len(sizes), int((passes * samples).max()), dtype=torch.int64)
    for mine, size, number, generator in zip(orders, sizes, passes.tolist(), draws, strict=True):
        for one in mine[: number * size].view(number, size):
            torch.randperm(size, generator=generator, out=one)

    step = np.arange(each.max() * epochs)
    number, place = step // batches[:, None], step % batches[:, None]
    slot = np.arange(batch_size + joins.any())
    position = place[..., None] * batch_size + slot  # of a sample in its pass's order
    last = joins[:, None] & (place == batches[:, None] - 1)
    taken = step < each[:, None] * epochs
    real = (position < samples[:, None, None]) & ((slot < batch_size) | last[..., None]) & taken[..., None]
    where = np.where(real, number[..., None] * samples[:, None, None] + position, 0).reshape(len(sizes), -1)
    rows = np.take_along_axis(orders.numpy(), where, 1).reshape(position.shape)
    return Schedule(torch.from_numpy(np.where(real, rows, -1)), torch.from_numpy(each), epochs)


def steps_in_epoch(samples: Samples, batch_size: int) -> tuple[Samples, NDArray[np.bool_]]:
    """How many batches each client has, and whether its last one takes the sample that would be left alone."""
    joins = (samples > batch_size) & (samples % batch_size == 1)
    return -(-samples // batch_size) - joins, joins


def smallest_batch(samples: int, batch_size: int) -> int:
    """How many samples are in the smallest batch of an epoch."""
    batches = int(steps_in_epoch(np.array([samples]), batch_size)[0].item())
    last = samples - (batches - 1) * batch_size
    return last if batches == 1 else min(last, batch_size)


def sizes_that_do(samples: int, batch_size: int, least: int) -> list[int]:
    """The nearest smaller and larger batch sizes of which no batch has fewer than `least` samples, if there are any."""
    ways = range(batch_size - 1, least - 1, -1), range(max(batch_size + 1, least), samples + 1)
    nearest = (next((size for size in sizes if smallest_batch(samples, size) >= least), None) for sizes in ways)
    return [size for size in nearest if size is not None]


class Losses(NamedTuple):
    """What clients lost in each step: [clients, steps], and which steps each of them took."""

    values: Tensor
    taken: Tensor  # bool

    @classmethod
    def of(cls, values: Tensor, schedule: Schedule) -> Losses:
        """Losses of the steps of a schedule."""
        return cls(values, schedule.taken.to(values.device, non_blocking=True))

    def means(self) -> Tensor:
        """[clients]: each client's mean."""
        return self.values.where(self.taken, 0).sum(1) / self.taken.sum(1)

    def last(self, each: Tensor) -> Losses:
        """Those of the last epoch, of so many steps for each client."""
        rank = self.taken.cumsum(1)
        before = rank[:, -1:] - each.to(self.values.device, non_blocking=True).unsqueeze(-1)
        return self._replace(taken=self.taken & (rank > before))
