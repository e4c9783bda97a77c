"""FedProx: its term is half μ times the squared distance, and without it the method is FedAvg."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods import build_method
from protofed.methods.base import Clock, Turn
from protofed.models.net import Net
from tests.support.loss_cases import Case
from tests.support.nets import play
from tests.support.whole_runs import assert_exactly_the_same

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(seed=seeds, mu=st.sampled_from([0.0, 0.01, 1.0, 3.0]))
def test_fedprox_adds_half_mu_times_the_squared_distance(seed: int, mu: float) -> None:
    case = Case(seed)
    squares = [
        (float(a) - float(b)) ** 2
        for name, weight in case.module.named_parameters()
        for a, b in zip(weight.detach().flatten(), case.other[name].flatten(), strict=True)
    ]
    added = case.added(build_method("fedprox", {"mu": mu}), Broadcast(case.other))
    assert_close(added, torch.full((5,), mu / 2 * sum(squares), dtype=torch.float64))


def test_fedprox_pulls_to_the_received_weights_but_not_them_to_itself() -> None:
    case = Case(0)
    received = {name: value.requires_grad_() for name, value in case.other.items()}
    turn = Turn(Broadcast(received), Clock(0, 1))
    net = Net(case.module)
    proximal, plain = (
        torch.autograd.grad(
            build_method("fedprox", {"mu": mu}).loss(net, case.batch, turn).mean(), list(net.weights.values())
        )
        for mu in (2.0, 0.0)
    )
    for name, a, b in zip(net.weights, proximal, plain, strict=True):
        assert_close(a - b, 2.0 * (net.weights[name] - received[name]).detach())


def test_without_its_term_fedprox_trains_exactly_as_fedavg() -> None:
    assert_exactly_the_same(play("fedprox", {"mu": 0}), play("fedavg"))
