"""FedNova: its norm is what steps of SGD add up to, its server a plain loop, and with equal steps it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, Server
from protofed.methods.fedavg import FedAvg
from protofed.methods.fednova import FedNova
from protofed.methods.optimisers import SGD, gradient_weight
from tests.reference import fednova as slow
from tests.support import whole_runs
from tests.support.nets import federation, gap, play
from tests.support.server_runs import models, rows
from tests.support.trained_clients import trained
from tests.support.turns import turn_of

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
STATISTICS = ("norm.running_mean", "norm.running_var")


@quick
@given(steps=st.lists(st.integers(1, 40), min_size=1, max_size=4), rho=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
def test_the_norm_is_the_double_sum(steps: list[int], rho: float) -> None:
    expected = torch.tensor([slow.norm(one, rho) for one in steps], dtype=torch.float64)
    assert_close(gradient_weight(torch.tensor(steps), rho), expected)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_norm_is_how_far_sgd_goes_down_a_slope_of_one(rho: float) -> None:
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = SGD([w], lr=0.1, momentum=rho)
    for _ in range(7):
        w.grad = torch.ones_like(w)
        optimiser.step()
    assert_close(-w.detach() / 0.1, gradient_weight(torch.tensor(7), rho))


@quick
@given(clients=st.integers(1, 5), seed=seeds, averaging=st.sampled_from(["samples", "uniform"]))
def test_the_server_is_the_loop(clients: int, seed: int, averaging: str) -> None:
    stacked, (old,) = models(clients, seed), rows(models(1, seed + 1))
    rng = torch.Generator().manual_seed(seed)
    samples = torch.randint(1, 50, (clients,), generator=rng)
    norms = torch.randint(1, 90, (clients,), generator=rng) * 1.25
    share = samples.tolist() if averaging == "samples" else [1.0] * clients
    floats = [name for name, value in stacked.items() if value.is_floating_point()]
    expected = slow.server({name: old[name] for name in floats}, rows(stacked), share, norms.tolist(), STATISTICS)
    sent = Upload(stacked, {}, {"samples": samples, "divisor": norms.double()})
    found = FedNova(averaging=averaging).aggregate(sent, Server(Broadcast(old), Clock(1, 3))).weights  # type: ignore[arg-type]
    assert_close({name: found[name] for name in floats}, expected)
    assert torch.equal(found["batches"], stacked["batches"][0])


@pytest.mark.parametrize(("divisor", "rho"), [("momentum", 0.5), ("momentum", 0.0), ("steps", 0.5)])
def test_a_client_sends_the_norm_of_its_steps(divisor: str, rho: float) -> None:
    clients = trained(1)
    turn = turn_of(clients)._replace(steps=torch.tensor([1, 4, 30]), momentum=rho)
    sent = build_method("fednova", {"divisor": divisor}).upload(clients, turn).numbers
    expected = [slow.norm(steps, rho if divisor == "momentum" else 0.0) for steps in (1, 4, 30)]
    assert_close(sent["divisor"], torch.tensor(expected, dtype=torch.float64))
    assert sent["divisor"][0] == 1


def test_a_norm_of_nothing_counts_as_one_step() -> None:
    sent = Upload({"w": torch.ones(2, 3)}, {}, {"samples": torch.tensor([1, 1]), "divisor": torch.tensor([0.0, 1.0])})
    found = FedNova().aggregate(sent, Server(Broadcast({"w": torch.zeros(3)}), Clock(0, 1))).weights
    assert found["w"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("averaging", ["samples", "uniform"])
def test_with_equal_steps_it_is_exactly_fedavg(engine: str, averaging: Any) -> None:
    """A run whose clients are as unequal as ever but take three steps each, with a momentum of 0.5."""
    run, plain = (
        whole_runs.run_of(method, engine, steps=3, epochs=1)
        for method in (FedNova(averaging=averaging), FedAvg(averaging=averaging))
    )
    whole_runs.assert_exactly_the_same(run, plain)


def test_with_unequal_steps_it_is_not() -> None:
    run, plain = play("fednova"), play("fedavg")
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) > 1e-4


def test_a_whole_round_is_the_loop_with_the_steps_and_the_momentum_of_the_run() -> None:
    run = play("fednova", rounds=0, clients=federation([{0: 20}, {1: 9, 2: 8}, {3: 1}]), participation=1.0)
    start = dict(run.broadcast.weights)
    run.play_round()
    group = run.engine.groups[0]
    own = group.own.take(range(3))
    steps = [2 * count for count in (3, 2, 1)]  # batches of 8, of which the last takes in a single sample left over
    clients = [{name: value[k] for name, value in own.items()} for k in range(3)]
    statistics = [name for name in own if "running" in name]
    expected = slow.server(start, clients, [20, 17, 1], [slow.norm(one, 0.5) for one in steps], statistics)
    assert_close(dict(run.broadcast.weights), expected)


def test_another_optimiser_has_no_momentum() -> None:
    run = play("fednova", rounds=0, optimiser="adam", participation=1.0)
    sent = run.engine.round(range(5), run.broadcast, Clock(0, 1, tuple(range(5)), 5)).uploads
    group = run.engine.groups[0]
    steps = run.engine.schedule(group, range(5), Clock(0, 1)).steps
    assert sent.numbers["divisor"].tolist() == steps.tolist()


def test_fednova_learns() -> None:
    whole_runs.assert_learns(FedNova())
