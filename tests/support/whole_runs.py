"""Whole runs of methods that need not be registered: against plain loops, in both engines, beside FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.experiment import Experiment
from protofed.methods.base import Clock, Method
from protofed.methods.fedavg import FedAvg
from protofed.models import ModelSpec, Output
from protofed.models.layers import step
from protofed.runs.run import Run, new_run
from tests.reference import plain_rounds as slow
from tests.support.nets import Part, assert_same_run, federation, gap, own


class Levels(nn.Module):
    """A convolution and two dense layers that return block features, by default without randomness or state."""

    def __init__(self, shape: tuple[int, int, int], classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 3, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(3) if dropout else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(3 * -(-shape[1] // 2) * -(-shape[2] // 2), 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Output:
        maps = self.norm(self.conv(x))
        hidden = self.hidden(maps.relu().flatten(1))
        features = self.dropout(hidden.tanh())
        return Output(features, self.head(features), (maps, hidden))


class Restless(Levels):
    """The same with BatchNorm and dropout."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes, dropout=0.25)


# Nobody holds class 5. Batches of 8: 17 leaves one over, 19 leaves three, 12 leaves four.
PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {1: 2, 4: 10})


def run_of(method: Method, engine: str, rounds: int = 3, model: ModelSpec = Restless, **given: Any) -> Run:
    """A run like those of `nets.play`, of a method that need not be registered."""
    clients = given.pop("clients", None) or federation()
    options: dict[str, Any] = {"participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.02, "lr_decay": 0.9}
    options |= {"weight_decay": 1e-3, "precision": "float64", "device": "cpu", "rounds": max(1, rounds), **given}
    run = new_run(Experiment(method="fedavg", engine=engine, **options), method, clients, [model])  # type: ignore[arg-type]
    for _ in range(rounds):
        run.play_round()
    return run


def everything(name: str) -> bool:
    return bool(name)


def nowhere(name: str) -> bool:
    return not name


def base(name: str) -> bool:
    return name.startswith("conv")


def personal(name: str) -> bool:
    return not base(name)


@cache
def played(method: Method, engine: str) -> Run:
    """Three rounds of two epochs with three of five unequal clients, BatchNorm and dropout."""
    return run_of(method, engine)


def assert_rounds_are_those_of_plain_loops(
    method: Method,
    engine: str,
    term: slow.Term = slow.nothing,
    trains: Sequence[Callable[[str], bool]] = (everything,),
    shares: Callable[[str], bool] = everything,
    by_samples: bool = True,
    model: ModelSpec = Levels,
    stays: Callable[[str], bool] = nowhere,
) -> None:
    """Two of three clients a round, so that a client's previous model is not of the round before."""
    clients = federation(PARTS, test=30)
    options: dict[str, Any] = {"weight_decay": 0.0, "epochs": 1, "clients": clients, "participation": 0.67, "seed": 2}
    run = run_of(method, engine, 4, model, **options)
    group = run_of(method, engine, 0, model, **options).engine.groups[0]
    rounds: list[dict[int, list[list[list[int]]]]] = []
    for number, line in enumerate(run.history):
        rounds.append({})
        for who in line.participants:
            plan = run.engine.schedule(run.engine.groups[0], [who], Clock(number, 4))
            steps = [[int(row) for row in step if row >= 0] for step in plan.rows[0]]
            each = len(steps) // len(trains)
            rounds[-1][who] = [steps[phase * each : (phase + 1) * each] for phase in range(len(trains))]
    module = deepcopy(group.module).double()
    module.load_state_dict(group.own.initial)
    data = [slow.Data(group.inputs(client.train.x), client.train.labels) for client in clients.clients]
    sizes = [float(len(client.train)) if by_samples else 1.0 for client in clients.clients]
    rates = [0.02 * 0.9**number for number in range(len(rounds))]
    turns = [who for line in rounds for who in line]
    assert max(turns.count(who) for who in range(3)) > min(turns.count(who) for who in range(3)) > 1
    with step(torch.tensor(0)):  # BatchNorm of whole batches
        expected = slow.play(module, data, rounds, trains, shares, sizes, rates, term, method.clip, stays)
    for name, value in run.engine.groups[0].own.take(range(3)).items():
        assert_close(value, torch.stack([state[name] for state in expected]), atol=1e-10, rtol=0, msg=name)


def assert_engines_agree_and_the_term_takes_part(method: Method) -> None:
    """The run is neither FedAvg's nor, for a method with options, that of the method without them."""
    sequential, stacked = played(method, "sequential"), played(method, "stacked")
    assert_same_run(sequential, stacked)
    plain = FedAvg(averaging="uniform") if getattr(method, "averaging", "") == "uniform" else FedAvg()
    assert gap(own(stacked), own(played(plain, "stacked"))) > 1e-4
    default = type(method)()
    assert method == default or gap(stacked.state(), played(default, "stacked").state()) > 1e-5


def assert_exactly_the_same(run: Run, other: Run) -> None:
    """Clients have the same models, and the server sends the same weights."""
    assert gap(own(run), own(other)) == 0
    assert gap(dict(run.broadcast.weights), dict(other.broadcast.weights)) == 0


def assert_exactly_fedavg(method: Method, averaging: Literal["samples", "uniform"] = "samples") -> None:
    """Nothing but the term tells them apart."""
    assert_exactly_the_same(run_of(method, "sequential"), run_of(FedAvg(averaging=averaging), "sequential"))


def assert_learns(method: Method) -> None:
    """After 12 rounds on three clients that know all four classes, far better than a guess by its own score."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = run_of(
        method, "stacked", 12, Restless, clients=clients, participation=1.0, lr=0.1, lr_decay=1.0, eval_every=12
    )
    assert run.history[-1].accuracy[method.score] > 70
