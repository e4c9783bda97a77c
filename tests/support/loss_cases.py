"""A network and a batch of which a method's loss is asked."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.models import build
from protofed.models.net import Net
from tests.support.nets import Plain

CLASSES, DIM = 4, 6


class Case:
    """A network, a batch of 5, and other weights of the same network."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.module = build(Plain, (1, 3, 3), CLASSES, seed).double()
        x = torch.randn(5, 1, 3, 3, generator=rng, dtype=torch.float64)
        y = torch.randint(0, CLASSES, (5,), generator=rng)
        self.batch = Batch(x, y, torch.ones(5, dtype=torch.bool))
        self.features = self.module(x).features.detach()
        self.ce = torch.nn.functional.cross_entropy(self.module(x).logits, y, reduction="none").detach()
        self.other = {
            name: value + torch.randn(value.shape, generator=rng, dtype=torch.float64)
            for name, value in self.module.state_dict().items()
        }

    def loss(self, method: Method, received: Broadcast) -> Tensor:
        """What the method says of the batch."""
        return method.loss(Net(self.module), self.batch, Turn(method.receive(received), Clock(1, 3))).detach()

    def added(self, method: Method, received: Broadcast) -> Tensor:
        """What it adds to the cross-entropy."""
        return self.loss(method, received) - self.ce
