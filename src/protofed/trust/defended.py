"""What every defence gets and gives, and the median that several of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload

STATISTICS = ("running_mean", "running_var")
"""Endings of the names of what BatchNorm counts rather than learns."""


class Context(NamedTuple):
    """What a defence knows beside the round's uploads."""

    who: Sequence[int] | None = None  # the clients of the uploads; without them nothing is remembered
    trusted: Sequence[int] = ()  # clients that the operator answers for
    memory: Mapping[str, Tensor] = MappingProxyType({})  # what it has said of earlier rounds

    def trusted_rows(self, clients: int, device: torch.device) -> Tensor:
        """[N]: which of the uploads are of trusted clients."""
        who = range(clients) if self.who is None else self.who
        return torch.tensor([member in self.trusted for member in who], device=device)


NOTHING = Context()
"""What a defence knows that is only shown a round's uploads."""


class Defended(NamedTuple):
    """The uploads to aggregate, the places of the clients that are suspected, and what to remember."""

    uploads: Upload
    suspected: Sequence[int] = ()
    memory: Mapping[str, Tensor] = MappingProxyType({})


class Defence(Protocol):
    """What makes of a round's uploads those that the method may believe."""

    def __call__(self, uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:
        """As many uploads as it was given."""


def coordinate_median(updates: Tensor) -> Tensor:
    """The median of every coordinate; of an even number, the mean of the two in the middle."""
    ordered, half = updates.sort(0).values, (len(updates) - 1) // 2
    return (ordered[half] + ordered[len(updates) - 1 - half]) / 2
