"""Like FedNova: clients take steps and rates of their own; the server divides each change by the way it could go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Summed, Trained, Turn, param
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class OwnPace(FedAvg):
    """Odd clients take more steps at a lower rate, even ones fewer at a higher one."""

    name: ClassVar[str] = "own-pace"

    more: float = param(3.0, "times the steps of odd clients; even ones take half", above=0)

    def effort(self, steps: int, client: int, clock: Clock) -> tuple[int, float]:  # noqa: ARG002
        """At least one step."""
        return (round(self.more * steps), 0.5) if client % 2 else (max(1, steps // 2), 1.5)

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        """How many steps of which length each took, too."""
        sent = super().upload(trained, turn)
        return replace(sent, numbers={**sent.numbers, "way": turn.steps * turn.lr})

    def summed(self) -> Summed | None:
        """Each change is divided by its own way."""
        return None

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """To w + (mean of ways) · mean of (w_k − w) / way_k; what is counted is the first client's."""
        way, old, weights = uploads.numbers["way"], server.previous.weights, {}
        for name, tensor in uploads.weights.items():
            if tensor.is_floating_point():
                part = (way.mean() / way / len(way)).to(tensor.dtype)
                weights[name] = old[name] + torch.tensordot(part, tensor - old[name], dims=1)
            else:
                weights[name] = tensor[0]
        return Broadcast(weights)
