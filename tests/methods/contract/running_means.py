"""FedProto whose clients send running means of their prototypes, which they remember."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from protofed.messages import Upload
from protofed.methods.base import Trained, Turn, param
from protofed.methods.fedproto import FedProto
from protofed.prototypes import Prototypes, class_means


@dataclass(frozen=True)
class RunningMeans(FedProto):
    """m ← β m + (1 − β) c, where c is the mean of this turn; at first m = c."""

    name: ClassVar[str] = "running-means"

    beta: float = param(0.5, "β", at_least=0, below=1)

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:
        """No means yet."""
        head = weights["head.weight"]
        return {"means": head.new_zeros(classes, head.shape[1]), "counts": head.new_zeros(classes)}

    def moved(self, trained: Trained, turn: Turn) -> Prototypes:
        """The running means [N, C, 1, D] after this turn; those of classes that are not there stay as they are."""
        fresh = class_means(trained.features, trained.labels, trained.classes)
        old = Prototypes(turn.memory["means"].unsqueeze(2), turn.memory["counts"].unsqueeze(2))
        mixed = torch.where(old.filled.unsqueeze(-1), self.beta * old.vectors, self.beta * fresh.vectors)
        mixed = mixed + (1 - self.beta) * fresh.vectors
        here = fresh.filled
        return Prototypes(mixed.where(here.unsqueeze(-1), old.vectors), torch.where(here, fresh.counts, old.counts))

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        """The running means."""
        means, counts = self.moved(trained, turn)
        return {"means": means.squeeze(2), "counts": counts.squeeze(2)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """The running means."""
        return replace(super().upload(trained, turn), prototypes={"means": self.moved(trained, turn)})
