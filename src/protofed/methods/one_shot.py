"""What FedNCM, Fed3R and FedCOF share: features are fixed, and the server makes the head from statistics of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Collect, Phase, Server, Summed, Trained, Turn
from protofed.methods.local import Local
from protofed.models.linear_head import as_head, is_head


@dataclass(frozen=True)
class FixedFeatures(Local):
    """Nobody trains; what is before the head stays as it was at the beginning, the same for all."""

    down: ClassVar[str] = "head"
    score: ClassVar[str] = "global/all/head"
    linear_head: ClassVar[bool] = True

    collect: Collect | None = field(default="eval-pass", init=False)

    def phases(self, epochs: int) -> Sequence[Phase]:  # noqa: ARG002
        """Nobody trains."""
        return []

    def shares(self, name: str) -> bool:
        """The head comes from the server; no client sends it."""
        return is_head(name)

    def does_without(self, name: str) -> bool:
        """What is before the head need not be sent."""
        return not is_head(name)


@dataclass(frozen=True)
class OneShot(FixedFeatures):
    """Clients send sums over their samples once; what the server keeps is the sum over all of them."""

    @abstractmethod
    def statistics(self, features: Tensor, member: Tensor) -> Mapping[str, Tensor]:
        """What clients send: sums over their samples [N, ...], from features [N, n, D] and classes [N, n, C], 0 or 1.

        Both are float64. A sample that pads has no class, and its feature must not count.
        """

    @abstractmethod
    def head(self, total: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """The head's weight [C, D], and its bias [C] unless that is 0, from the sums over all clients so far."""

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """Sums in a client's first turn; zeros ever after, so that nobody counts twice."""
        member = trained.labels.unsqueeze(-1) == torch.arange(trained.classes, device=trained.labels.device)
        found = self.statistics(trained.features.double(), member.double())
        first = (turn.taken == 0).double()
        return Upload(sums={name: torch.einsum("n,n...->n...", first, value) for name, value in found.items()})

    def summed(self) -> Summed | None:
        """Nothing but sums."""
        return Summed()

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """The head of all that was ever sent."""
        kept = server.previous.kept
        total = {name: value.sum(0) + kept.get(name, 0) for name, value in uploads.sums.items()}
        return self._with(total, server.previous)

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast | None:  # noqa: ARG002
        """A sum without one of its terms, if that is known."""
        if sent is None:
            return None
        return self._with({name: value - sent.sums[name].sum(0) for name, value in broadcast.kept.items()}, broadcast)

    def _with(self, total: Mapping[str, Tensor], previous: Broadcast) -> Broadcast:
        weight, bias = self.head(total)
        return Broadcast(as_head(weight, previous.weights, bias), kept=total)
