"""Candidates for a method of our own, which own-method.yaml compares on validation data; none is in the registry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Collect, Server, Trained, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.prototypes import Prototypes, class_means


@dataclass(frozen=True)
class Recall(FedAvg):
    """The prior taken out of the loss, pooled class means replayed through the head, and contrast with them."""

    name: ClassVar[str] = "recall"
    score: ClassVar[str] = "global/all/head"
    rule: ClassVar[str] = "own-prior"
    clip: ClassVar[float | None] = 10.0
    linear_head: ClassVar[bool] = True

    tau: float = param(1.0, "how much of the client's class prior is taken out", at_least=0)
    smooth: float = param(0.1, "samples of each class that a client is taken to have besides", above=0)
    replay: float = param(5.0, "weight of the replay", at_least=0)
    contrast: float = param(1.0, "weight of the contrast", at_least=0)
    temperature: float = param(0.07, "of the contrast", above=0)
    fair: bool = param(False, "whether the prior is taken out of the contrast, too")
    collect: Collect = param("eval-pass", "when features are taken for prototypes")
    norm: Literal["mean", "total"] = param("mean", "how BatchNorm's variances are averaged")
    even: bool = param(False, "whether τ is scaled by how even the client's classes are, its entropy over log C")
    pull: float = param(0.0, "weight of the pull to the mean prototype of the class", at_least=0)
    tail: float = param(0.0, "part of the rounds, the last ones, whose averaged models the last broadcast averages")

    def prior(self, turn: Turn, like: Tensor) -> Tensor:
        """τ log π_c of the client, smoothed; with all of it taken out a client of one class would learn nothing."""
        number = turn.counts.to(like.dtype) + self.smooth
        share = number / number.sum(-1, keepdim=True)
        tau = -self.tau * torch.special.xlogy(share, share).sum() / math.log(len(share)) if self.even else self.tau
        return tau * share.log()

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """CE(g + τ log π, y) + λ_r mean_c Σ_m CE(W p_cm + b, c) + λ_c CE(log Σ_m exp(cos(z, p_cm)/T), y)."""
        out = model(batch.x)
        prior = self.prior(turn, out.logits)
        total = cross_entropy(out.logits + prior, batch.y)
        pool = turn.received.prototypes.get("pool")
        if pool is None:  # first round
            return total
        classes, places, size = pool.vectors.shape
        flat, present = pool.vectors.reshape(-1, size), pool.present.to(prior.dtype)
        held = present.sum().clamp(min=1)
        answers = linear(flat, model.weights["head.weight"], model.weights["head.bias"])
        labels = torch.arange(classes, device=flat.device).repeat_interleave(places)
        part = pool.counts / pool.counts.sum(-1, keepdim=True).clamp(min=1e-9)
        again = (cross_entropy(answers, labels).view(classes, places) * part).sum(-1)
        near = normalize(out.features, dim=-1) @ normalize(flat, dim=-1).T / self.temperature
        classwise = near.view(-1, classes, places).masked_fill(~pool.filled, -1e9).logsumexp(-1)
        apart = cross_entropy(classwise + prior if self.fair else classwise, batch.y) * present[batch.y.clamp(min=0)]
        centre = (pool.vectors * part.unsqueeze(-1)).sum(1)[batch.y.clamp(min=0)]
        near_own = (out.features - centre).square().mean(-1) * present[batch.y.clamp(min=0)]
        return total + self.replay * (again * present).sum() / held + self.contrast * apart + self.pull * near_own

    def answer(self, output: Output, turn: Turn) -> Tensor:
        """The prior added back: what a client's own data are like."""
        return output.logits + self.prior(turn, output.logits)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """μ_{k,c}."""
        return {"local": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        """FedAvg, and every client's class means."""
        weights, pool = super().aggregate(uploads, server).weights, {"pool": uploads.prototypes["local"].pooled()}
        clock = server.clock
        tail = round(self.tail * clock.rounds)
        left = clock.rounds - 1 - clock.round
        if left >= tail:
            return Broadcast(weights, pool)
        number = tail - left
        old = server.previous.kept or weights
        mean = {
            name: old[name] + (w - old[name]) / number if w.is_floating_point() else w for name, w in weights.items()
        }
        return Broadcast(weights if left else mean, pool, kept=mean)

    def pools(self) -> bool:
        """Every client's class means."""
        return True

    def references(self, broadcast: Broadcast) -> Prototypes | None:
        """The pool."""
        return broadcast.prototypes.get("pool")
