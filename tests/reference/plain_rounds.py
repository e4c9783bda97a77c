"""Rounds of clients that train with a term: plain modules, loops over clients and batches.

Nothing here calls an engine or a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

State = dict[str, Tensor]
Rows = Sequence[Sequence[int]]  # batches of sample numbers


class Data(NamedTuple):
    """One client's images and labels."""

    x: Tensor
    y: Tensor

    def counts(self, classes: int) -> list[int]:
        """How many samples of each class there are."""
        return [sum(int(y) == c for y in self.y) for c in range(classes)]


class Moment(NamedTuple):
    """A client at a training step: its model, the batch, what it received, its model after its last turn, its data."""

    module: nn.Module
    x: Tensor
    y: Tensor
    received: Mapping[str, Tensor]
    last: State | None
    data: Data


Term = Callable[[Moment], Tensor]  # -> what is added to the mean cross-entropy


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, Sequence[Rows]]],
    trains: Sequence[Callable[[str], bool]],
    shares: Callable[[str], bool],
    importance: Sequence[float],
    rates: Sequence[float],
    term: Term,
    clip: float | None = None,
    stays: Callable[[str], bool] | None = None,
) -> list[State]:
    """Every client's model after some rounds.

    A round says, for each of its participants and each phase of its turn, the batches; `trains` says, for each phase,
    which parameters move. What is shared is averaged over participants by importance, but for what `stays` as it was
    at the beginning of every turn. SGD with momentum 0.5.
    """
    start = {name: value.clone() for name, value in module.state_dict().items()}
    own: list[State] = [dict(start) for _ in clients]
    had_a_turn = [False] * len(clients)
    server = {name: value for name, value in start.items() if shares(name)}
    for batches, rate in zip(rounds, rates, strict=True):
        for who in batches:
            last = dict(own[who]) if had_a_turn[who] else None
            module.load_state_dict({**own[who], **server})
            for rows, moves in zip(batches[who], trains, strict=True):
                moving = [parameter for name, parameter in module.named_parameters() if moves(name)]
                optimiser = torch.optim.SGD(moving, lr=rate, momentum=0.5)
                for chosen in rows:
                    x, y = clients[who].x[list(chosen)], clients[who].y[list(chosen)]
                    loss = cross_entropy(module(x).logits, y) + term(Moment(module, x, y, server, last, clients[who]))
                    module.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    if clip is not None:
                        nn.utils.clip_grad_norm_(moving, clip)
                    optimiser.step()
            own[who] = {name: value.clone() for name, value in module.state_dict().items()}
            had_a_turn[who] = True
        total = sum(importance[who] for who in batches)
        server = {
            name: torch.stack([importance[who] / total * own[who][name] for who in batches]).sum(0) for name in server
        }
        server |= {name: start[name] for name in server if stays is not None and stays(name)}
    return own


def nothing(moment: Moment) -> Tensor:
    """Cross-entropy alone."""
    return torch.zeros((), dtype=moment.x.dtype)


def frozen(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The same network with other weights, which do not move."""
    other = deepcopy(module).eval()
    other.load_state_dict(dict(state))
    return other.requires_grad_(False)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """a·b / (|a| |b|)."""
    return (a * b).sum() / ((a * a).sum().sqrt() * (b * b).sum().sqrt())
