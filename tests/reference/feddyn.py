"""A slow, obvious version of FedDyn: Algorithm 1 line by line, gradients written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.reference.plain_rounds import Data, Rows

State = dict[str, Tensor]


def server(
    theta: Mapping[str, Tensor], h: Mapping[str, Tensor], models: Sequence[Mapping[str, Tensor]], m: int, alpha: float
) -> tuple[State, State]:
    """The next θ and h."""
    new_theta, new_h = {}, {}
    for name, old in theta.items():
        total, mean = torch.zeros_like(old), torch.zeros_like(old)
        for model in models:
            total = total + (model[name] - old)
            mean = mean + model[name] / len(models)
        new_h[name] = h[name] - alpha * total / m
        new_theta[name] = mean - new_h[name] / alpha
    return new_theta, new_h


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, Rows]],
    rates: Sequence[float],
    momentum: float,
    alpha: float,
) -> tuple[State, State, list[State]]:
    """The server's θ and h and all clients' gradients after some rounds, of networks without BatchNorm."""
    theta = {name: value.clone() for name, value in module.state_dict().items()}
    h = {name: torch.zeros_like(value) for name, value in theta.items()}
    own = [{name: torch.zeros_like(value) for name, value in theta.items()} for _ in clients]
    for batches, rate in zip(rounds, rates, strict=True):
        models = []
        for who, rows in batches.items():
            module.load_state_dict(theta)
            velocity = {name: torch.zeros_like(value) for name, value in theta.items()}
            for chosen in rows:
                loss = cross_entropy(module(clients[who].x[list(chosen)]).logits, clients[who].y[list(chosen)])
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                with torch.no_grad():
                    for (name, weight), gradient in zip(module.named_parameters(), gradients, strict=True):
                        whole = gradient - own[who][name] + alpha * (weight - theta[name])
                        velocity[name] = momentum * velocity[name] + whole
                        weight.sub_(rate * velocity[name])
            models.append({name: value.clone() for name, value in module.state_dict().items()})
            own[who] = {name: own[who][name] - alpha * (models[-1][name] - theta[name]) for name in theta}
        theta, h = server(theta, h, models, len(clients), alpha)
    return theta, h, own
