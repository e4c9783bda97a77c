"""The losses of FPL, FedPLVM, FedPLCC and FedProc are their equations, sample by sample and cluster by cluster."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fpl import FPL
from protofed.models import build
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from tests.reference import clusters as slow
from tests.reference.fedplcc import attraction, fedplcc
from tests.reference.fedplvm import fedplvm
from tests.reference.fedproc import fedproc
from tests.reference.fpl import fpl
from tests.support import cluster_runs
from tests.support.cluster_runs import CLASSES, CLOCK, DIM, loss_of, sent
from tests.support.nets import Plain
from tests.support.prototype_cases import random_features, random_prototypes

quick = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**16)
Slow = Callable[[Tensor, int, Tensor, slow.Clusters], Tensor]


def counted_once(clusters: slow.Clusters) -> slow.Clusters:
    """The same, as if each had one sample."""
    return {c: [(vector, 1.0) for vector, _ in members] for c, members in clusters.items()}


# Each variant beside its equations.
VARIANTS: dict[str, tuple[Method, Slow]] = {
    "fpl": (FPL(contrast_weight=1.0), lambda z, y, ce, g: fpl(z, y, ce, g, 0.02)),
    "fpl sum": (
        FPL(pull="sum", contrast_weight=1.0, temperature=0.5),
        lambda z, y, ce, g: fpl(z, y, ce, g, 0.5, total=True),
    ),
    "fedplvm": (FedPLVM(lam=100.0), lambda z, y, ce, g: fedplvm(z, y, ce, g, 100, 0.07, 0.25)),
    "fedplvm plain cosine": (
        FedPLVM(lam=2.0, alpha=1.0, temperature=0.3),
        lambda z, y, ce, g: fedplvm(z, y, ce, g, 2, 0.3, 1),
    ),
    "fedplcc": (
        FedPLCC(lambda1=100.0),
        lambda z, y, ce, g: fedplcc(z, y, ce, g, 100, 1000, 0.07, 0.5, Fraction(1, 2), True),
    ),
    "fedplcc all pull": (
        FedPLCC(lambda1=3.0, ratio=2.0, phi=1.0, temperature=0.055),
        lambda z, y, ce, g: fedplcc(z, y, ce, g, 3, 6, 0.055, 0.5, Fraction(1), True),
    ),
    "fedplcc weights 1": (
        FedPLCC(lambda1=100.0, cluster_weights="one"),
        lambda z, y, ce, g: fedplcc(z, y, ce, g, 100, 1000, 0.07, 0.5, Fraction(1, 2), False),
    ),
    "fedplcc equal weights": (
        FedPLCC(lambda1=100.0, cluster_weights="equal"),
        lambda z, y, ce, g: fedplcc(z, y, ce, counted_once(g), 100, 1000, 0.07, 0.5, Fraction(1, 2), True),
    ),
    "fedplcc no contrast": (
        FedPLCC(lambda1=0.0, lambda2=1000.0),
        lambda z, y, ce, g: ce + 1000 * attraction(z, y, g, 0.5, Fraction(1, 2), True),
    ),
    "fedplcc no correction": (
        FedPLCC(lambda1=100.0, ratio=0.0),
        lambda z, y, ce, g: ce + 100 * slow.contrast(z, y, g, 0.07, 0.5, True),
    ),
    "fedplcc neither": (FedPLCC(lambda1=0.0), lambda *given: given[2]),
    "fedproc": (FedProc(), lambda z, y, ce, g: fedproc(z, y, ce, g, 1 - 2 / 5, 1.0)),
    "fedproc port": (FedProc(schedule="port"), lambda z, y, ce, g: fedproc(z, y, ce, g, 1 - 2 / 4, 1.0)),
    "fedproc sharp": (FedProc(temperature=0.1), lambda z, y, ce, g: fedproc(z, y, ce, g, 1 - 2 / 5, 0.1)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@quick
@given(batch=st.integers(1, 5), slots=st.integers(1, 4), seed=seeds)
def test_losses_and_gradients_are_the_equations(variant: str, batch: int, slots: int, seed: int) -> None:
    """With empty slots, classes without prototypes, single samples and cosines of both signs."""
    method, equation = VARIANTS[variant]
    rng = torch.Generator().manual_seed(seed)
    module = build(Plain, (1, 3, 3), CLASSES, seed).double()
    x = torch.randn(batch, 1, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (batch,), generator=rng)
    known = random_prototypes(CLASSES, 1 if isinstance(method, FedProc) else slots, DIM, seed=seed)

    turn = Turn(sent(method, known), CLOCK)
    result = method.loss(Net(module), Batch(x, y, torch.ones(batch, dtype=torch.bool)), turn)
    out, clusters = module(x), slow.as_clusters(known)
    ce = torch.nn.functional.cross_entropy(out.logits, y, reduction="none")
    expected = torch.stack(
        [equation(z, int(label), c, clusters) for z, label, c in zip(out.features, y, ce, strict=True)]
    )
    assert_close(result, expected, rtol=1e-9, atol=1e-9)
    weights = list(module.parameters())
    for a, b in zip(
        torch.autograd.grad(result.sum(), weights), torch.autograd.grad(expected.sum(), weights), strict=True
    ):
        assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_prototypes_the_loss_is_cross_entropy(variant: str) -> None:
    """D22: for FedProc too, whose schedule would give it no weight in round 0."""
    method, _ = VARIANTS[variant]
    z, y = random_features(3, DIM, seed=0), torch.tensor([0, 1, 2])
    ce = torch.full((3,), 9.0, dtype=torch.float64).log()
    for clock in (Clock(0, 5), Clock(3, 5), Clock(0, 1)):
        assert_close(loss_of(method, z, y, None, clock), ce)


@cluster_runs.every_method
def test_a_class_without_prototypes_adds_nothing(kind: type[FedAvg]) -> None:
    z, y = random_features(3, DIM, seed=1), torch.tensor([0, 1, 2])
    known = random_prototypes(CLASSES, 1, DIM, seed=1, empty=0)
    counts = known.counts.clone()
    counts[1] = 0
    gone = Prototypes(known.vectors * (counts > 0).unsqueeze(-1), counts)
    method = kind()
    share = 1 - method.share(CLOCK) if isinstance(method, FedProc) else 1.0
    ce = share * torch.tensor(9.0, dtype=torch.float64).log()
    added = loss_of(method, z, y, gone) - ce
    assert (added.abs() > 1e-6).tolist() == [True, False, True]
    nothing = Prototypes(torch.zeros_like(known.vectors), torch.zeros_like(known.counts))
    assert_close(loss_of(method, z, y, nothing), ce.expand(3))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_at_every_angle(variant: str, dtype: torch.dtype) -> None:
    """Cosines −1, 0 and 1; a zero feature and prototype, tiny and huge features."""
    method, _ = VARIANTS[variant]
    known = torch.tensor([[[1.0, 0, 0]], [[-3, 0, 0]], [[0, 0, 0]], [[0, 0, 0]]], dtype=dtype)
    counts = torch.tensor([[2.0], [1], [4], [0]], dtype=dtype)  # a zero prototype; an empty class
    z = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [1e-6, 0, 1e-6], [1e4, 1, 0]], dtype=dtype)
    for label in range(4):
        features = z.clone().requires_grad_()
        value = loss_of(method, features, torch.full((5,), label), Prototypes(known, counts))
        (gradient,) = torch.autograd.grad(value.sum(), features, allow_unused=True)
        assert value.dtype == dtype
        assert bool(value.isfinite().all())
        assert gradient is None or bool(gradient.isfinite().all())


@cluster_runs.every_method
def test_the_engine_may_map_the_loss_over_clients(kind: type[FedAvg]) -> None:
    """No value decides what is computed."""
    z, y = random_features(3, 5, DIM, seed=0), torch.randint(0, CLASSES, (3, 5))
    known = random_prototypes(CLASSES, 1, DIM, seed=3)
    mapped = torch.func.vmap(lambda a, b: loss_of(kind(), a, b, known))(z, y)
    assert_close(mapped, torch.stack([loss_of(kind(), z[k], y[k], known) for k in range(3)]))
