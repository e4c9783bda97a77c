"""Networks with given outputs, and what a method adds to their cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.models import Output
from protofed.models.net import Net


class Given(nn.Module):
    """A network whose outputs are its parameters."""

    feature_size = 3

    def __init__(self, features: Tensor, logits: Tensor, *blocks: Tensor) -> None:
        super().__init__()
        self.features, self.logits = nn.Parameter(features), nn.Parameter(logits)
        self.blocks = nn.ParameterList(blocks)

    def forward(self, x: Tensor) -> Output:
        del x
        return Output(self.features * 1, self.logits * 1, tuple(block * 1 for block in self.blocks))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(number: int, classes: int, seed: int) -> Tensor:
    return torch.randint(0, classes, (number,), generator=torch.Generator().manual_seed(seed))


def added(method: Method, module: nn.Module, y: Tensor, turn: Turn, mask: Tensor | None = None) -> Tensor:
    """What a method adds to the cross-entropy."""
    batch = Batch(torch.zeros(len(y), 1), y, torch.ones(len(y), dtype=torch.bool) if mask is None else mask)
    ce = nn.functional.cross_entropy(module(batch.x).logits, y, reduction="none")
    return method.loss(Net(module), batch, turn) - ce


def turn_of(received: nn.Module, previous: nn.Module | None = None, taken: int = 0) -> Turn:
    last = {} if previous is None else previous.state_dict()
    return Turn(Broadcast(received.state_dict()), Clock(1, 3), last, taken=torch.tensor(taken))


def gradients(method: Method, module: nn.Module, y: Tensor, turn: Turn) -> list[Tensor]:
    """Of the added term, by every parameter it depends on."""
    found = torch.autograd.grad(added(method, module, y, turn).sum(), list(module.parameters()), allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def modes_asked(method: Method) -> list[bool]:
    """Whether each network that a loss asks, in turn, is training."""
    net, seen = Given(normal(2, 3, seed=0), normal(2, 3, seed=1)), []
    net.register_forward_hook(lambda module, *_: seen.append(module.training))
    method.loss(Net(net), Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.ones(2).bool()), turn_of(net, net, 1))
    return seen
