"""Rounds of clients whose server does more than average: plain modules, loops over clients and batches.

Nothing here calls an engine or a method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.reference.plain_rounds import Data, Rows

State = dict[str, Tensor]
Begin = Callable[[int], State]  # client -> the weights that it receives
Serve = Callable[[int, dict[int, State]], None]  # round, the participants' models -> what the server makes of them
Term = Callable[[int, Tensor, Tensor], Tensor]  # phase, features, labels -> what is added to the mean cross-entropy


def nothing(phase: int, features: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy alone."""
    del phase, labels
    return features.new_zeros(())


def play(
    module: nn.Module,
    clients: Sequence[Data],
    rounds: Sequence[Mapping[int, Sequence[Rows]]],
    trains: Sequence[Callable[[str], bool]],
    rates: Sequence[float],
    begin: Begin,
    serve: Serve,
    term: Term = nothing,
) -> list[State]:
    """Every client's model after some rounds. SGD with momentum 0.5."""
    own = [{name: value.clone() for name, value in module.state_dict().items()} for _ in clients]
    for number, (batches, rate) in enumerate(zip(rounds, rates, strict=True)):
        for who in batches:
            module.load_state_dict({**own[who], **begin(who)})
            for phase, (rows, moves) in enumerate(zip(batches[who], trains, strict=True)):
                moving = [parameter for name, parameter in module.named_parameters() if moves(name)]
                optimiser = torch.optim.SGD(moving, lr=rate, momentum=0.5)
                for chosen in rows:
                    x, y = clients[who].x[list(chosen)], clients[who].y[list(chosen)]
                    out = module(x)
                    loss = cross_entropy(out.logits, y) + term(phase, out.features, y)
                    module.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
            own[who] = {name: value.clone() for name, value in module.state_dict().items()}
        serve(number, {who: own[who] for who in batches})
    return own


def features_of(module: nn.Module, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """By a model with these weights."""
    module.load_state_dict(dict(state))
    with torch.no_grad():
        found: Tensor = module(x).features
    return found


def by_class(features: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """Each class's features [n, D]."""
    found: dict[int, list[Tensor]] = {}
    for z, label in zip(features, labels.tolist(), strict=True):
        if label >= 0:
            found.setdefault(label, []).append(z)
    return {label: torch.stack(some) for label, some in sorted(found.items())}
