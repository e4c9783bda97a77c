"""FedETF: its frame is a simplex, its head and loss are plain loops, the frame is never trained nor sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedetf import FedETF
from protofed.models import MODELS, build
from protofed.models.etf_head import EtfHead, simplex_frame
from protofed.models.layers import step
from protofed.models.net import Net
from tests.reference import fedetf as slow
from tests.reference.fedrod import balanced
from tests.support import whole_runs
from tests.support.given_outputs import Given, normal
from tests.support.nets import Noisy, gap, own, taken_by
from tests.support.whole_runs import Restless

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
SENT = {"head.scale", "head.projection.weight", "head.projection.bias"}


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_the_frame_is_a_simplex(classes: int) -> None:
    vectors = simplex_frame(classes).double()
    assert_close(vectors, torch.tensor(slow.frame(classes), dtype=torch.float64), atol=1e-6, rtol=0)
    cosines = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    assert_close(vectors.T @ vectors, cosines, atol=1e-5, rtol=0)
    assert slow.sums_to_nothing(vectors)


@quick
@given(batch=st.integers(1, 5), features=st.integers(1, 6), classes=st.integers(2, 5), seed=seeds)
def test_the_head_is_the_loop(batch: int, features: int, classes: int, seed: int) -> None:
    """With fewer features than classes too: the projection brings them up."""
    torch.manual_seed(seed)
    head = EtfHead(features, classes, 3.0).double()
    head.frame = torch.tensor(slow.frame(classes), dtype=torch.float64)
    z = normal(batch, features, seed=seed)
    expected = [slow.logits(row, head.projection.weight, head.projection.bias, 3.0) for row in z]
    assert_close(head(z), torch.tensor(expected, dtype=torch.float64))
    assert bool((head(z).abs() <= 3 + 1e-9).all())


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_loss_is_the_loop(seed: int, batch: int, classes: int, gamma: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 2, (classes,), generator=rng) * torch.randint(1, 90, (classes,), generator=rng)
    counts[int(torch.randint(0, classes, (), generator=rng))] += 1
    held = counts.nonzero().flatten()
    y = held[torch.randint(0, len(held), (batch,), generator=rng)]
    net = Given(torch.zeros(batch, 3), 3 * normal(batch, classes, seed=seed))
    turn = Turn(Broadcast(), Clock(1, 3), counts=counts)
    found = FedETF(gamma=gamma).loss(Net(net), Batch(torch.zeros(batch, 1), y, torch.ones_like(y).bool()), turn)
    assert_close(found, balanced(net.logits, y.tolist(), counts.tolist(), gamma), atol=1e-12, rtol=1e-10)


def test_a_feature_of_zeros_has_a_finite_gradient() -> None:
    head = EtfHead(4, 3, 1.0)
    nn.init.zeros_(head.projection.bias)
    z = torch.zeros(2, 4, requires_grad=True)
    nn.functional.cross_entropy(head(z), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


@pytest.mark.parametrize("model", [*MODELS, Noisy, Restless])
def test_every_model_takes_the_fixed_head(model: Any) -> None:
    shape, classes = taken_by(model, (3, 32, 32)), 60  # more than FedProto's CNN has features
    module, again = (build(model, shape, classes, 0, FedETF().extend) for _ in range(2))
    assert gap(module.state_dict(), again.state_dict()) == 0  # no two clients differ
    assert {name for name in module.state_dict() if "head." in name} == SENT
    module.train()
    with step(torch.tensor(0)):
        loss = nn.functional.cross_entropy(module(shape.example(3)).logits, torch.tensor([0, 1, 2]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def heads(run: Any) -> dict[str, Tensor]:
    mine = run.engine.groups[0].own.take(range(5))
    return {name: value for name, value in mine.items() if name.startswith("head.")}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_frame_is_neither_trained_nor_sent(engine: str) -> None:
    run = whole_runs.run_of(FedETF(), engine, 2, Restless, participation=1.0)
    assert {name for name in run.broadcast.weights if name.startswith("head.")} == SENT
    assert heads(run).keys() == SENT
    assert len(set(heads(run)["head.scale"].flatten().tolist())) == 5  # which is learnt
    head = cast(EtfHead, run.engine.groups[0].module.head)
    assert torch.equal(head.frame, simplex_frame(6).double())


@dataclass(frozen=True)
class FedAvgOnTheFrame(FedAvg):
    """The architecture without the loss."""

    name: ClassVar[str] = "fedavg-on-the-frame"

    def extend(self, module: nn.Module, classes: int) -> nn.Module:
        return FedETF().extend(module, classes)


def test_without_the_prior_it_is_exactly_fedavg_with_this_head() -> None:
    plain = whole_runs.run_of(FedAvgOnTheFrame(), "sequential")
    whole_runs.assert_exactly_the_same(whole_runs.run_of(FedETF(gamma=0), "sequential"), plain)
    assert gap(own(whole_runs.played(FedETF(), "sequential")), own(plain)) > 1e-4


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    method = FedETF(gamma=0.8, scale=2.0)
    whole_runs.assert_rounds_are_those_of_plain_loops(method, engine, slow.fedetf_term(0.8))


@pytest.mark.parametrize("method", [FedETF(), FedETF(scale=5.0), FedETF(gamma=0.5), FedETF(averaging="uniform")])
def test_engines_agree_to_rounding_and_the_frame_takes_part(method: FedETF) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_fedetf_learns() -> None:
    whole_runs.assert_learns(FedETF())
