"""A slow, obvious version of SCAFFOLD with option II: Algorithm 1 line by line, corrections added to gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.reference.plain_rounds import Data, Rows

State = dict[str, Tensor]


def change(x: Tensor, y: Tensor, c: Tensor, rate: float, steps: float) -> Tensor:
    """How a client's variate changes: c_i⁺ − c_i = −c + (x − y) / (K η)."""
    return -c + (x - y) / (steps * rate)


def server(
    x: Mapping[str, Tensor],
    c: Mapping[str, Tensor],
    models: Sequence[Mapping[str, Tensor]],
    changes: Sequence[Mapping[str, Tensor]],
    clients: int,
    rate: float,
) -> tuple[State, State]:
    """The next x and c: steps along the mean update of the participants and along changes spread over all clients."""
    new_x, new_c = {}, {}
    for name in x:
        mean = torch.zeros_like(x[name])
        for model in models:
            mean = mean + (model[name] - x[name]) / len(models)
        new_x[name] = x[name] + rate * mean
    for name in c:
        new_c[name] = c[name].clone()
        for one in changes:
            new_c[name] = new_c[name] + one[name] / clients
    return new_x, new_c


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, Rows]],
    rates: Sequence[float],
    momentum: float,
    length: Callable[[int], float],
    server_rate: float,
) -> tuple[State, State, list[State]]:
    """The server's x and c and all clients' variates after some rounds, of networks without BatchNorm."""
    x = {name: value.clone() for name, value in module.state_dict().items()}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    own = [{name: torch.zeros_like(value) for name, value in x.items()} for _ in clients]
    for batches, rate in zip(rounds, rates, strict=True):
        models, changes = [], []
        for who, rows in batches.items():
            module.load_state_dict(x)
            velocity = {name: torch.zeros_like(value) for name, value in x.items()}
            for chosen in rows:
                loss = cross_entropy(module(clients[who].x[list(chosen)]).logits, clients[who].y[list(chosen)])
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for (name, parameter), gradient in zip(module.named_parameters(), gradients, strict=True):
                        velocity[name] = momentum * velocity[name] + gradient + c[name] - own[who][name]
                        parameter.sub_(rate * velocity[name])
            y = {name: value.clone() for name, value in module.state_dict().items()}
            models.append(y)
            changes.append({name: change(x[name], y[name], c[name], rate, length(len(rows))) for name in x})
            own[who] = {name: own[who][name] + changes[-1][name] for name in x}
        x, c = server(x, c, models, changes, len(clients), server_rate)
    return x, c, own
