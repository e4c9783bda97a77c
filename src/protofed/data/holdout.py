"""Which images are for testing where nobody says so, and which come first."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.data.samples import Samples


def places(groups: Tensor) -> Tensor:
    """How many of the same group came before each."""
    counts = groups.bincount()
    first = counts.cumsum(0) - counts
    place = torch.empty_like(groups)
    place[groups.argsort(stable=True)] = torch.arange(len(groups)) - first.repeat_interleave(counts)
    return place


def fifth_out(samples: Samples) -> tuple[Samples, Samples]:
    """Training and test samples: every fifth image of each class, in each domain, is a test image."""
    test = places(_pairs(samples)) % 5 == 4
    return samples.take((~test).nonzero().flatten()), samples.take(test.nonzero().flatten())


def interleaved(samples: Samples) -> Samples:
    """Domains and classes in turn, as long as they last, so that the first n images are balanced."""
    turn = places(_pairs(samples))
    for numbers in (samples.labels, samples.domains):
        turn = turn * _size(numbers) + numbers
    return samples.take(turn.argsort())


def _pairs(samples: Samples) -> Tensor:
    """A number for each pair of class and domain."""
    return samples.labels * _size(samples.domains) + samples.domains


def _size(numbers: Tensor) -> int:
    """How many numbers there may be, from 0 to the largest."""
    return len(numbers.bincount())
