"""A slow, obvious version of Ditto: two plain networks a client, one of them averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.reference.plain_rounds import Data, Rows

State = dict[str, Tensor]


def pull(own: Mapping[str, Tensor], received: Mapping[str, Tensor], lam: float) -> float:
    """λ/2 times the squared distance, one number at a time."""
    squares = [
        (float(a) - float(b)) ** 2
        for name, value in own.items()
        for a, b in zip(value.flatten(), received[name].flatten(), strict=True)
    ]
    return lam / 2 * sum(squares)


def train(module: nn.Module, data: Data, rows: Rows, rate: float, towards: Mapping[str, Tensor], lam: float) -> State:
    """A model after some batches of SGD with momentum 0.5, its gradient with λ (v − w) added."""
    velocity = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for chosen in rows:
        loss = cross_entropy(module(data.x[list(chosen)]).logits, data.y[list(chosen)])
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for (name, weight), gradient in zip(module.named_parameters(), gradients, strict=True):
                velocity[name] = 0.5 * velocity[name] + gradient + lam * (weight - towards[name])
                weight.sub_(rate * velocity[name])
    return {name: value.clone() for name, value in module.state_dict().items()}


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, tuple[Rows, Rows]]],
    rates: Sequence[float],
    lam: float,
) -> tuple[State, list[State]]:
    """The average and every client's personal model; a round says each participant's batches for the two models."""
    average = {name: value.clone() for name, value in module.state_dict().items()}
    personal = [dict(average) for _ in clients]
    for batches, rate in zip(rounds, rates, strict=True):
        sent, total = [], sum(len(clients[who].y) for who in batches)
        for who, (first, second) in batches.items():
            module.load_state_dict(average)
            model = train(module, clients[who], first, rate, average, 0.0)
            sent.append({name: len(clients[who].y) / total * value for name, value in model.items()})
            module.load_state_dict(personal[who])
            personal[who] = train(module, clients[who], second, rate, average, lam)
        average = {name: torch.stack([one[name] for one in sent]).sum(0) for name in average}
    return average, personal
