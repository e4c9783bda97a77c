"""FedDyn: whole runs are Algorithm 1 in plain loops, and with its states at 0 it is FedProx."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.feddyn import FedDyn
from protofed.methods.fedprox import FedProx
from protofed.models.net import Net
from tests.reference import feddyn as slow
from tests.reference.plain_rounds import Data
from tests.support import whole_runs
from tests.support.loss_cases import Case
from tests.support.nets import federation
from tests.support.server_runs import models, rows
from tests.support.whole_runs import PARTS, Levels

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
NAMES = ("w", "b", "s")


@quick
@given(seed=seeds, alpha=st.sampled_from([0.01, 1.0, 3.0]))
def test_the_gradient_is_that_of_equation_1(seed: int, alpha: float) -> None:
    case = Case(seed)
    rng = torch.Generator().manual_seed(seed)
    state = {n: torch.randn(value.shape, generator=rng).double() for n, value in case.module.named_parameters()}
    turn = Turn(Broadcast(case.other), Clock(1, 3), memory=state)
    net = Net(case.module)
    dynamic, plain = (
        torch.autograd.grad(method.loss(net, case.batch, turn).mean(), list(net.weights.values()))
        for method in (FedDyn(alpha=alpha), FedAvg())
    )
    for name, one, other in zip(net.weights, dynamic, plain, strict=True):
        drift = (net.weights[name] - case.other[name]).detach()
        assert_close(one - other, alpha * drift - state[name])


@quick
@given(clients=st.integers(1, 4), seed=seeds, alpha=st.sampled_from([0.01, 1.0]))
def test_states_follow_the_loop(clients: int, seed: int, alpha: float) -> None:
    stacked, (theta,) = models(clients, seed), rows(models(1, seed + 1))
    memory = {name: models(clients, seed + 2)[name] for name in NAMES}
    empty = torch.empty(0)
    trained = Trained(stacked, torch.ones(clients), empty, empty, 4, empty)
    kept = FedDyn(alpha=alpha).remember(trained, Turn(Broadcast(theta), Clock(1, 3), memory=memory))
    assert set(kept) == set(NAMES)
    for name in NAMES:
        for k in range(clients):
            assert_close(kept[name][k], memory[name][k] - alpha * (stacked[name][k] - theta[name]))


@quick
@given(clients=st.integers(1, 4), seed=seeds, alpha=st.sampled_from([0.01, 1.0]), first=st.booleans())
def test_the_server_is_the_loop(clients: int, seed: int, alpha: float, first: bool) -> None:
    stacked, (theta,) = models(clients, seed), rows(models(1, seed + 1))
    h = {name: torch.zeros_like(theta[name]) if first else 0.1 * theta[name] for name in NAMES}
    previous = Broadcast(theta, kept={} if first else h)
    sent = Upload(stacked, {}, {"samples": torch.arange(1, clients + 1)})
    found = FedDyn(alpha=alpha).aggregate(sent, Server(previous, Clock(1, 3, tuple(range(clients)), 7)))
    weights, state = slow.server({name: theta[name] for name in NAMES}, h, rows(stacked), 7, alpha)
    # θ is a difference of numbers up to 1/α as large; b is of float32
    assert_close({name: found.weights[name] for name in NAMES}, weights, atol=1e-4, rtol=1e-5)
    assert_close(dict(found.kept), state, atol=1e-6, rtol=1e-5)
    for name in ("norm.running_mean", "norm.running_var"):
        assert_close(found.weights[name], stacked[name].mean(0))
    assert not found.numbers  # h stays at the server


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("alpha", "momentum"), [(0.1, 0.0), (1.0, 0.5)])
def test_a_whole_run_is_algorithm_1(alpha: float, momentum: float, engine: str) -> None:
    """Two of three clients a round, four rounds at a falling rate."""
    clients = federation(PARTS, test=30)
    options: dict[str, Any] = {"weight_decay": 0.0, "participation": 0.67, "seed": 2, "clients": clients}
    run = whole_runs.run_of(FedDyn(alpha=alpha), engine, 4, Levels, momentum=momentum, **options)
    group = run.engine.groups[0]
    rounds: list[dict[int, list[list[int]]]] = []
    for number, line in enumerate(run.history):
        plans = {who: run.engine.schedule(group, [who], Clock(number, 4)).rows[0] for who in line.participants}
        rounds.append({who: [[int(r) for r in step if r >= 0] for step in plan] for who, plan in plans.items()})
    module = deepcopy(group.module).double()
    module.load_state_dict(group.own.initial)
    data = [Data(group.inputs(client.train.x), client.train.labels) for client in clients.clients]
    theta, h, own = slow.play(module, data, rounds, [0.02 * 0.9**number for number in range(4)], momentum, alpha)
    assert_close(dict(run.broadcast.weights), theta, atol=1e-9, rtol=0)
    assert_close(dict(run.broadcast.kept), h, atol=1e-9, rtol=0)
    for name, value in group.own.memory(range(3)).items():
        assert_close(value, torch.stack([one[name] for one in own]), atol=1e-9, rtol=0)


@dataclass(frozen=True)
class Frozen(FedDyn):
    """States that stay 0, at the server too."""

    name: ClassVar[str] = "frozen"

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:  # noqa: ARG002
        return turn.memory

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        return FedAvg.aggregate(self, uploads, server)


@pytest.mark.parametrize("averaging", ["samples", "uniform"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_with_states_frozen_at_0_it_is_exactly_fedprox(averaging: Any, engine: str) -> None:
    run, plain = (
        whole_runs.run_of(method, engine)
        for method in (Frozen(alpha=0.3, averaging=averaging), FedProx(mu=0.3, averaging=averaging))
    )
    whole_runs.assert_exactly_the_same(run, plain)


def test_h_is_the_mean_of_all_states() -> None:
    """The official code has no h: it takes the mean of all clients' states, absent ones included."""
    run = whole_runs.run_of(FedDyn(), "stacked", 4)
    assert not any(line.left_out for line in run.history)
    own = run.engine.groups[0].own.memory(range(5))
    for name, h in run.broadcast.kept.items():
        assert_close(h, own[name].mean(0))


def test_where_all_agree_nothing_moves() -> None:
    """The paper's fixed point: clients whose optimum is the server's model leave it and h as they are."""
    theta, h = {"w": torch.tensor([1.0, -2.0])}, {"w": torch.zeros(2)}
    sent = Upload({"w": theta["w"].repeat(3, 1)}, {}, {"samples": torch.tensor([1, 2, 3])})
    found = FedDyn().aggregate(sent, Server(Broadcast(theta, kept=h), Clock(1, 3, (0, 1, 2), 5)))
    assert found.weights["w"].tolist() == [1.0, -2.0]
    assert found.kept["w"].tolist() == [0.0, 0.0]


def test_feddyn_learns() -> None:
    whole_runs.assert_learns(FedDyn())
