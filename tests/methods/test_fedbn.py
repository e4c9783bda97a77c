"""FedBN: BatchNorm stays whatever its name, the rest is the plain mean, and without BatchNorm it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Clock, Server, Trained
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbn import FedBN
from protofed.models import MODELS, build
from protofed.models.layers import BatchNorm
from tests.reference import fedbn as slow
from tests.support import whole_runs
from tests.support.nets import Noisy, gap, own, play, taken_by
from tests.support.turns import turn_of
from tests.support.whole_runs import Levels, Restless

quick = settings(max_examples=15, deadline=None)


class Normed(Levels):
    """BatchNorm without dropout."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.norm = nn.BatchNorm2d(3)


class OddlyNamed(nn.Module):
    """BatchNorms that are not called so, and a layer that is; a GroupNorm, whose parameters are shared."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.bn = nn.Linear(torch.Size(shape).numel(), 4)
        self.shortcut = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
        self.group = nn.GroupNorm(2, 4)
        self.norm = nn.BatchNorm1d(4)
        self.normal = nn.Linear(4, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.normal(self.norm(self.group(self.shortcut(self.bn(x.flatten(1))))))
        return features, self.head(features)


@pytest.mark.parametrize("model", [*MODELS, Noisy, Restless, Normed, OddlyNamed])
def test_what_stays_are_the_batch_norms_of_the_model(model: Any) -> None:
    module = build(model, taken_by(model, (3, 32, 32)), 10, 0)
    names = list(module.state_dict())
    staying = slow.of_batch_norm(module, (BatchNorm,))
    assert set(names) - FedBN().shared(names) == staying
    if model is OddlyNamed:
        running = {f"{layer}.running_{what}" for layer in ("shortcut.1", "norm") for what in ("mean", "var")}
        assert staying == running | {"norm.weight", "norm.bias"}


@quick
@given(clients=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_upload_and_server_are_the_loop(clients: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    module = build(OddlyNamed, (1, 2, 2), 3, 0)
    weights = {
        name: torch.randn(clients, *value.shape, generator=rng, dtype=torch.float64)
        for name, value in module.state_dict().items()
    }
    samples = torch.randint(1, 50, (clients,), generator=rng)
    empty = torch.empty(clients, 0, dtype=torch.int64)
    trained = Trained(weights, samples, torch.empty(clients, 0, 4), empty, 3, torch.arange(clients))
    sent = FedBN().upload(trained, turn_of(trained))
    staying = slow.of_batch_norm(module, (BatchNorm,))
    assert set(sent.weights) == set(weights) - staying
    result = FedBN().aggregate(sent, Server(Broadcast(), Clock(0, 1)))
    expected = slow.mean_without([{n: value[k] for n, value in weights.items()} for k in range(clients)], staying)
    assert_close(dict(result.weights), expected)


def test_batch_norm_stays_and_the_rest_is_averaged() -> None:
    run = whole_runs.run_of(FedBN(), "sequential", 2, Restless, participation=1.0)
    mine = run.engine.groups[0].own.take(range(5))
    for name, value in run.broadcast.weights.items():
        assert_close(value, mine[name].mean(0))
    for name in ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"):
        assert name not in run.broadcast.weights
        assert all(float((mine[name][0] - other).abs().max()) > 1e-6 for other in mine[name][1:])
    assert not any(name.startswith("global") for name in run.history[-1].accuracy)  # there is no whole model


def test_a_client_goes_on_with_its_own_batch_norm() -> None:
    """What FedAvg loses: after its turn a client that sits out has the statistics of its own data, and begins there."""
    run = play("fedbn", rounds=1, participation=1.0)
    before = {name: tensor.clone() for name, tensor in run.engine.groups[0].own.take([1]).items()}
    start = run.engine.groups[0].start([1], run.engine.turns_after(run.engine.groups[0], [1], run.broadcast))
    for name, value in start.items():
        expected = run.broadcast.weights[name] if name in run.broadcast.weights else before[name][0]
        assert torch.equal(value[0], expected), name


def test_without_batch_norm_fedbn_is_exactly_fedavg() -> None:
    one, other = (whole_runs.run_of(kind, "sequential", 3, Levels) for kind in (FedBN(), FedAvg(averaging="uniform")))
    whole_runs.assert_exactly_the_same(one, other)
    assert one.history[-1].accuracy == other.history[-1].accuracy  # global/… among them
    assert gap(own(play("fedbn")), own(play("fedavg", {"averaging": "uniform"}))) > 1e-4


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    def shares(name: str) -> bool:
        return not name.startswith("norm.")

    whole_runs.assert_rounds_are_those_of_plain_loops(FedBN(), engine, shares=shares, by_samples=False, model=Normed)


@pytest.mark.parametrize("method", [FedBN(), FedBN(averaging="samples")])
def test_engines_agree_to_rounding_and_layers_stay(method: FedBN) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_fedbn_learns() -> None:
    whole_runs.assert_learns(FedBN())
