"""Each method's local objective against plain loops."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods import METHODS, build_method
from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.models import build
from protofed.models.net import Net
from protofed.prototypes import Metric, Prototypes, class_means, pad_with_class_mean, slot_contrast
from tests.reference import methods as slow
from tests.reference import prototypes as reference
from tests.support.nets import Plain
from tests.support.prototype_cases import random_prototypes

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)

CLASSES, DIM = 4, 6
METRICS: tuple[Metric, ...] = get_args(Metric)


class Case:
    """A network, a batch of 5, and other weights of the same network."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.module = build(Plain, (1, 3, 3), CLASSES, seed).double()
        x = torch.randn(5, 1, 3, 3, generator=rng, dtype=torch.float64)
        y = torch.randint(0, CLASSES, (5,), generator=rng)
        self.batch = Batch(x, y, torch.ones(5, dtype=torch.bool))
        self.features = self.module(x).features.detach()
        self.ce = torch.nn.functional.cross_entropy(self.module(x).logits, y, reduction="none").detach()
        self.other = {
            name: value + torch.randn(value.shape, generator=rng, dtype=torch.float64)
            for name, value in self.module.state_dict().items()
        }

    def loss(self, method: Method, received: Broadcast) -> Tensor:
        """What the method says of the batch."""
        return method.loss(Net(self.module), self.batch, Turn(method.receive(received), Clock(1, 3))).detach()

    def added(self, method: Method, received: Broadcast) -> Tensor:
        """What it adds to the cross-entropy."""
        return self.loss(method, received) - self.ce


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedrcl"])  # whose pairs are there at once
def test_without_prototypes_and_at_the_received_weights_the_loss_is_cross_entropy(name: str) -> None:
    case = Case(3)
    assert_close(case.loss(build_method(name, {}), Broadcast(case.module.state_dict())), case.ce)


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


@quick
@given(seed=seeds, lam=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_fedproto_adds_lambda_times_the_distance_to_the_own_class(seed: int, lam: float) -> None:
    case, known = Case(seed), random_prototypes(CLASSES, 1, DIM, seed=seed)
    z, y, sets = case.features.numpy(), case.batch.y.numpy(), reference.as_sets(known)
    for metric in METRICS:
        method = build_method("fedproto", {"lam": lam, "metric": metric})
        expected = lam * torch.tensor(reference.distance(z, y, sets, metric), dtype=torch.float64)
        assert_close(case.added(method, Broadcast({}, {"global": known})), expected)
        method = build_method("fedproto", {"lam": lam, "metric": metric, "per": "prototype"})
        total = lam * reference.prototype_distance(z, y, sets, metric)
        mean = case.added(method, Broadcast({}, {"global": known})).mean()
        assert_close(mean, torch.tensor(total, dtype=torch.float64))


def test_fedproto_says_nothing_of_a_class_nobody_sent_and_keeps_it_in_the_mean() -> None:
    case, known = Case(1), random_prototypes(CLASSES, 1, DIM, seed=1, empty=0)
    gone = case.batch.y == case.batch.y[0]
    without = known.counts.clone()
    without[case.batch.y[0]] = 0
    method = build_method("fedproto", {})
    full = case.added(method, Broadcast({}, {"global": known}))
    part = case.added(method, Broadcast({}, {"global": Prototypes(known.vectors, without)}))
    assert bool((full > 1e-3).all())
    assert_close(part, torch.where(gone, 0, full))


@quick
@given(seed=seeds, clients=st.integers(1, 3), slots=st.integers(1, 3), tau=st.sampled_from([0.07, 0.5]))
def test_pools_add_a_contrast_with_the_padded_or_whole_pool(seed: int, clients: int, slots: int, tau: float) -> None:
    case, pool = Case(seed), random_prototypes(clients, CLASSES, slots, DIM, seed=seed)
    received = Broadcast({}, {"pool": pool})
    z, y = case.features.numpy(), case.batch.y.numpy()
    each = [reference.as_sets(pool.take(i)) for i in range(clients)]
    padded = reference.pad_with_class_mean(each, slots)
    slot_sets = [{c: [torch.tensor(u) for u in us] for c, us in client.items()} for client in padded]
    whole = reference.as_sets(pool.pooled())

    params: dict[str, Any] = {"temperature": tau, "ce_weight": 0.5, "contrast_weight": 3.0}
    result = case.loss(build_method("mp-fedcl", params), received)
    if slot_sets[0]:
        term = slow.slot_contrast(slot_sets, slots, tau)(case.module, case.features, case.batch.y)
        assert_close(result.mean(), 0.5 * case.ce.mean() + 3 * term)
    else:
        assert_close(result, 0.5 * case.ce)

    contrast = torch.tensor(reference.pooled_contrast(z, y, whole, tau), dtype=torch.float64)
    expected = 0.5 * case.ce + 3 * contrast
    assert_close(case.loss(build_method("dp-fedcl", params), received), expected)
    assert_close(case.loss(build_method("mp-fedcl", {**params, "contrast": "pooled"}), received), expected)
    assert_close(case.loss(build_method("sp-fedcl", {**params, "contrast": "none"}), received), 0.5 * case.ce)


def test_only_the_slot_wise_loss_pads_and_padding_leaves_the_broadcast_alone() -> None:
    pool = random_prototypes(3, CLASSES, 2, DIM, seed=7)
    sent = Broadcast({"w": torch.ones(1)}, {"pool": pool})
    before = pool.vectors.clone(), pool.counts.clone()
    received = build_method("mp-fedcl", {}).receive(sent)
    assert_close(received.prototypes["pool"], pad_with_class_mean(pool))
    assert float((received.prototypes["pool"].counts - pool.counts).abs().max()) > 0
    assert torch.equal(received.weights["w"], sent.weights["w"])
    assert_close(tuple(sent.prototypes["pool"]), before)
    for params in ({"contrast": "pooled"}, {"contrast": "none"}):
        assert build_method("mp-fedcl", params).receive(sent) is sent
    first = Broadcast({"w": torch.ones(1)})
    assert build_method("mp-fedcl", {}).receive(first) is first


def separable(seed: int) -> tuple[Tensor, Tensor]:
    """Three classes around three corners of a cube, 20 samples each."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 3
    return 3 * torch.eye(3, 5, dtype=torch.float64)[labels] + torch.randn(
        60, 5, generator=rng, dtype=torch.float64
    ), labels


def literal(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """Eq. 11 as printed: P(y) are the labels other than y."""
    logits = (
        torch.nn.functional.normalize(features, dim=-1) @ torch.nn.functional.normalize(pool.vectors[0, :, 0], dim=-1).T
    )
    scores = torch.log_softmax(logits / temperature, -1)
    wrong = torch.ones_like(scores).scatter(1, labels.view(-1, 1), 0)
    return -(scores * wrong).sum(-1) / wrong.sum(-1)


def test_the_printed_positives_lower_nearest_prototype_accuracy() -> None:
    """With P(y) = the other labels, features move to wrong classes."""
    accuracy = {}
    for reading in ("ours", "printed"):
        x, y = separable(0)
        torch.manual_seed(0)
        encoder = torch.nn.Linear(5, 4, dtype=torch.float64)
        pool = class_means(encoder(x).detach().unsqueeze(0), y.unsqueeze(0), 3)  # one client, one slot
        optimiser = torch.optim.SGD(encoder.parameters(), lr=0.05)
        for _ in range(60):
            loss = (slot_contrast if reading == "ours" else literal)(encoder(x), y, pool, 0.5).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        z = encoder(x).detach().numpy()
        found = reference.nearest_class(z, reference.as_sets(pool.take(0)))
        accuracy[reading] = float(np.mean(np.array(found) == y.numpy()))
    assert accuracy["ours"] > 0.8
    assert accuracy["printed"] < accuracy["ours"] - 0.3
