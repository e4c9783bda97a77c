"""SCAFFOLD: whole runs are Algorithm 1 in plain loops, and without its variates it is FedAvg."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.scaffold import Scaffold
from protofed.models.net import Net
from protofed.runs.run import Run
from tests.reference import fednova
from tests.reference import scaffold as slow
from tests.reference.plain_rounds import Data
from tests.support import whole_runs
from tests.support.loss_cases import Case
from tests.support.nets import federation
from tests.support.server_runs import models, rows
from tests.support.whole_runs import PARTS, Levels

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(seed=seeds)
def test_the_gradient_is_corrected_by_the_difference_of_the_variates(seed: int) -> None:
    case = Case(seed)
    names = [name for name, _ in case.module.named_parameters()]
    rng = torch.Generator().manual_seed(seed)
    c, mine = ({n: torch.randn(case.other[n].shape, generator=rng).double() for n in names} for _ in range(2))
    turn = Turn(Broadcast(case.other, numbers=c), Clock(1, 3), memory=mine)
    net = Net(case.module)
    corrected, plain = (
        torch.autograd.grad(method.loss(net, case.batch, turn).mean(), list(net.weights.values()))
        for method in (Scaffold(), FedAvg())
    )
    for name, one, other in zip(names, corrected, plain, strict=True):
        assert_close(one - other, c[name] - mine[name])


def test_at_the_received_weights_the_loss_is_cross_entropy_whatever_the_variates() -> None:
    case = Case(1)
    one = {name: torch.ones_like(value) for name, value in case.module.named_parameters()}
    turn = Turn(Broadcast(case.module.state_dict(), numbers=one), Clock(1, 3), memory={n: -v for n, v in one.items()})
    assert_close(Scaffold().loss(Net(case.module), case.batch, turn).detach(), case.ce)


@quick
@given(clients=st.integers(1, 4), seed=seeds, rho=st.sampled_from([0.0, 0.5]), first=st.booleans())
def test_variates_change_as_in_the_loop(clients: int, seed: int, rho: float, first: bool) -> None:
    stacked, (x,) = models(clients, seed), rows(models(1, seed + 1))
    names = ("w", "b", "s")
    rng = torch.Generator().manual_seed(seed)
    memory = {name: torch.randn(stacked[name].shape, generator=rng).to(stacked[name].dtype) for name in names}
    c = {name: torch.zeros_like(x[name]) if first else x[name] * 0.5 for name in names}
    steps = torch.randint(1, 9, (clients,), generator=rng)
    lr = torch.rand(clients, generator=rng).double() + 0.1
    turn = Turn(Broadcast(x, numbers={} if first else c), Clock(1, 3), memory=memory, steps=steps, lr=lr, momentum=rho)
    empty = torch.empty(0)
    trained = Trained(stacked, torch.ones(clients), empty, empty, 4, empty)
    for divisor in ("momentum", "steps"):
        method = Scaffold(divisor=divisor)
        sent, kept = method.upload(trained, turn), method.remember(trained, turn)
        assert list(sent.sums) == ["variate"]
        assert set(kept) == set(names)
        for k in range(clients):
            number = fednova.norm(int(steps[k]), rho if divisor == "momentum" else 0.0)
            changes = {n: slow.change(x[n], stacked[n][k], c[n], float(lr[k]), number) for n in names}
            assert_close(sent.sums["variate"][k], torch.cat([changes[n].flatten().double() for n in sorted(names)]))
            for name in names:
                assert_close(kept[name][k], memory[name][k] + changes[name])


@quick
@given(clients=st.integers(1, 4), seed=seeds, rate=st.sampled_from([1.0, 0.3, 2.0]), first=st.booleans())
def test_the_server_is_the_loop(clients: int, seed: int, rate: float, first: bool) -> None:
    stacked, (x,) = models(clients, seed), rows(models(1, seed + 1))
    names = ("w", "b", "s")
    changes = {name: models(clients, seed + 2)[name] for name in names}
    c = {name: torch.zeros_like(x[name]) if first else 2 * x[name] for name in names}
    vectors = torch.cat([changes[name].reshape(clients, -1).double() for name in sorted(names)], 1)
    sent = Upload(stacked, {}, {"samples": torch.arange(1, clients + 1)}, {"variate": vectors})
    previous = Broadcast(x, numbers={} if first else c)
    found = Scaffold(server_lr=rate).aggregate(sent, Server(previous, Clock(1, 3, tuple(range(clients)), 7)))
    each = [{name: changes[name][k] for name in names} for k in range(clients)]
    weights, variate = slow.server({name: x[name] for name in names}, c, rows(stacked), each, 7, rate)
    assert_close({name: found.weights[name] for name in names}, weights)
    assert_close(dict(found.numbers), variate)
    for name in ("norm.running_mean", "norm.running_var"):
        assert_close(found.weights[name], stacked[name].mean(0))


OPTIONS: dict[str, Any] = {"weight_decay": 0.0, "epochs": 2, "participation": 0.67, "seed": 2}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("method", "momentum"), [(Scaffold(), 0.0), (Scaffold(server_lr=0.7), 0.5), (Scaffold(divisor="steps"), 0.5)]
)
def test_a_whole_run_is_algorithm_1(method: Scaffold, momentum: float, engine: str) -> None:
    """Two of three clients of unequal steps a round, four rounds at a falling rate."""
    clients = federation(PARTS, test=30)
    options = {**OPTIONS, "clients": clients, "momentum": momentum}
    run = whole_runs.run_of(method, engine, 4, Levels, **options)
    group = run.engine.groups[0]
    rounds: list[dict[int, list[list[int]]]] = []
    for number, line in enumerate(run.history):
        plans = {who: run.engine.schedule(group, [who], Clock(number, 4)).rows[0] for who in line.participants}
        rounds.append({who: [[int(r) for r in step if r >= 0] for step in plan] for who, plan in plans.items()})
    module = deepcopy(group.module).double()
    module.load_state_dict(group.own.initial)
    data = [Data(group.inputs(client.train.x), client.train.labels) for client in clients.clients]
    rates = [0.02 * 0.9**number for number in range(4)]
    rho = momentum if method.divisor == "momentum" else 0.0
    x, c, own = slow.play(module, data, rounds, rates, momentum, lambda k: fednova.norm(k, rho), method.server_lr)
    assert_close(dict(run.broadcast.weights), x, atol=1e-10, rtol=0)
    assert_close(dict(run.broadcast.numbers), c, atol=1e-9, rtol=0)
    for name, value in group.own.memory(range(3)).items():
        assert_close(value, torch.stack([one[name] for one in own]), atol=1e-9, rtol=0)


@dataclass(frozen=True)
class Frozen(Scaffold):
    """Variates that stay 0, at the server too."""

    name: ClassVar[str] = "frozen"

    def change(self, trained: Trained, turn: Turn) -> dict[str, torch.Tensor]:
        return {name: torch.zeros_like(value) for name, value in super().change(trained, turn).items()}


@pytest.mark.parametrize("averaging", ["samples", "uniform"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_with_variates_frozen_at_0_it_is_exactly_fedavg(averaging: Any, engine: str) -> None:
    run, plain = (
        whole_runs.run_of(method, engine) for method in (Frozen(averaging=averaging), FedAvg(averaging=averaging))
    )
    assert run.broadcast.numbers
    whole_runs.assert_exactly_the_same(run, plain)


def test_the_mean_of_all_variates_is_the_servers() -> None:
    """N c = Σ c_i at all times: a port that adds whole variates, or divides by the participants, would lose this."""
    run = whole_runs.run_of(Scaffold(), "stacked", 4)
    assert not any(line.left_out for line in run.history)
    own = run.engine.groups[0].own.memory(range(5))
    for name, value in run.broadcast.numbers.items():
        assert_close(value, own[name].mean(0))
    assert float(run.broadcast.numbers["head.weight"].abs().max()) > 1e-2


def drift(run: Run) -> float:
    """How far clients end from each other, after a round that began at the same weights."""
    own = run.engine.groups[0].own.take(range(3)).values()
    return sum(float((value - value.mean(0)).square().sum()) for value in own)


def test_variates_keep_clients_together() -> None:
    """Three clients of different classes: with corrected gradients they end a round nearer to each other."""
    options: dict[str, Any] = {"clients": federation([{0: 16}, {1: 16}, {2: 16}], test=30), "participation": 1.0}
    plain = whole_runs.run_of(FedAvg(averaging="uniform"), "stacked", 4, Levels, **options)
    run = whole_runs.run_of(Scaffold(), "stacked", 4, Levels, **options)
    assert drift(run) < 0.5 * drift(plain)


def test_scaffold_learns() -> None:
    whole_runs.assert_learns(Scaffold())
