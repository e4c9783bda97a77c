"""FedLC: its loss is a plain loop, classes a client lacks take no part, and without a margin it is FedAvg."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.fedlc import FedLC
from protofed.models.net import Net
from tests.reference import fedlc as slow
from tests.support import whole_runs
from tests.support.given_outputs import Given, normal
from tests.support.nets import gap, own, play

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
taus = st.sampled_from([0.0, 0.01, 1.0, 3.0])


def drawn(classes: int, batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of samples, of which some are 0 and one at least is not, and labels of classes that are there."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 4, (classes,), generator=rng) * torch.randint(1, 200, (classes,), generator=rng)
    counts[int(torch.randint(0, classes, (), generator=rng))] += 1
    held = counts.nonzero().flatten()
    return counts, held[torch.randint(0, len(held), (batch,), generator=rng)]


def loss(method: FedLC, net: Given, y: Tensor, counts: Tensor) -> Tensor:
    batch = Batch(torch.zeros(len(y), 1), y, torch.ones_like(y).bool())
    return method.loss(Net(net), batch, Turn(Broadcast(), Clock(1, 3), counts=counts))


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), taus)
def test_the_loss_is_the_loop(seed: int, batch: int, classes: int, tau: float) -> None:
    counts, y = drawn(classes, batch, seed)
    net = Given(torch.zeros(batch, 3), 3 * normal(batch, classes, seed=seed))
    expected = slow.calibrated(net.logits, y.tolist(), counts.tolist(), tau)
    torch.testing.assert_close(loss(FedLC(tau=tau), net, y, counts), expected, atol=1e-12, rtol=1e-10)


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), taus)
def test_the_loss_as_printed_is_the_loop(seed: int, batch: int, classes: int, tau: float) -> None:
    """Where a client has another class: otherwise there is nothing to sum over."""
    counts, y = drawn(classes, batch, seed)
    counts = counts + 1
    net = Given(torch.zeros(batch, 3), 3 * normal(batch, classes, seed=seed))
    expected = slow.calibrated(net.logits, y.tolist(), counts.tolist(), tau, own=False)
    found = loss(FedLC(tau=tau, denominator="others"), net, y, counts)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)
    assert bool((found < loss(FedLC(tau=tau), net, y, counts)).all())


def test_a_class_that_a_client_lacks_takes_no_part() -> None:
    """Neither its logit nor its weights move; with τ = 0, as in FedAvg, they do."""
    counts, y = torch.tensor([5, 0, 2]), torch.tensor([0, 2, 0])
    net = Given(torch.zeros(3, 3), normal(3, 3, seed=1))
    (gradient,) = torch.autograd.grad(loss(FedLC(), net, y, counts).sum(), [net.logits])
    assert gradient[:, 1].tolist() == [0, 0, 0]
    assert bool((gradient[:, [0, 2]].abs() > 1e-3).all())
    (gradient,) = torch.autograd.grad(loss(FedLC(tau=0), net, y, counts).sum(), [net.logits])
    assert bool((gradient[:, 1] > 1e-3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("denominator", ["all", "others"])
def test_loss_and_gradient_of_padding_are_finite(dtype: torch.dtype, denominator: str) -> None:
    """A padded batch may hold other clients' classes; a client may have one class only, and a sure model."""
    for counts in (torch.tensor([0, 3, 0]), torch.tensor([1, 0, 10**6])):
        net = Given(torch.zeros(3, 3, dtype=dtype), 100 * normal(3, 3, seed=2).to(dtype))
        method = FedLC(denominator="all" if denominator == "all" else "others")
        found = loss(method, net, torch.tensor([0, 1, 2]), counts)
        (gradient,) = torch.autograd.grad(found.sum(), [net.logits])
        assert found.dtype == dtype
        assert bool(found.isfinite().all())
        assert bool(gradient.isfinite().all())


def test_a_rare_class_needs_a_larger_lead() -> None:
    """With equal logits and n = (1, 16) the margins are 1 and ½: rarer samples lose more."""
    net = Given(torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.float64))
    rare, common = loss(FedLC(), net, torch.tensor([0, 1]), torch.tensor([1, 16])).tolist()
    assert rare - common == pytest.approx(0.5)


def test_without_a_margin_it_is_exactly_fedavg() -> None:
    whole_runs.assert_exactly_fedavg(FedLC(tau=0))
    whole_runs.assert_exactly_the_same(play("fedlc", {"tau": 0}), play("fedavg"))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    whole_runs.assert_rounds_are_those_of_plain_loops(FedLC(tau=0.7), engine, slow.fedlc_term(0.7))


@pytest.mark.parametrize("method", [FedLC(), FedLC(tau=0.1), FedLC(averaging="uniform")])
def test_engines_agree_to_rounding_and_the_term_takes_part(method: FedLC) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_as_printed_engines_agree_too() -> None:
    options = {"rounds": 1, "epochs": 1, "lr": 1e-3}
    one, other = (
        whole_runs.run_of(FedLC(denominator="others"), engine, **options)  # type: ignore[arg-type]
        for engine in ("sequential", "stacked")
    )
    assert gap(own(one), own(other)) < 1e-9


def test_fedlc_learns() -> None:
    whole_runs.assert_learns(FedLC())
