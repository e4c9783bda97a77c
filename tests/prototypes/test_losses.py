"""Losses on prototypes against plain loops, under vmap, and at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.testing import assert_close

from protofed.prototypes import (
    Metric,
    Prototypes,
    cluster_attraction,
    cluster_contrast,
    distance,
    nearest_class,
    pad_with_class_mean,
    pooled_contrast,
    prototype_distance,
    slot_contrast,
)
from tests.reference import prototypes as reference
from tests.support.prototype_cases import quick, random_features, random_labels, random_prototypes, seeds

METRICS: tuple[Metric, ...] = get_args(Metric)
Loss = Callable[[Tensor, Tensor, Prototypes], Tensor]

LOSSES: dict[str, Loss] = {
    "slot": lambda z, y, p: slot_contrast(z, y, p, 0.07),
    "pooled": lambda z, y, p: pooled_contrast(z, y, p, 0.07),
    "cluster": lambda z, y, p: cluster_contrast(z, y, p.take(0), 0.07),
    "weighted cluster": lambda z, y, p: cluster_contrast(z, y, p.take(0), 0.07, 0.25, weights="samples"),
    "attraction": lambda z, y, p: cluster_attraction(z, y, p.take(0), 0.5, 0.5),
    **{m: lambda z, y, p, m=m: distance(z, y, Prototypes(p.vectors[0], p.counts[0]), m) for m in METRICS},  # type: ignore[misc]
    **{
        f"prototype {m}": lambda z, y, p, m=m: prototype_distance(
            z, y, y >= 0, Prototypes(p.vectors[0], p.counts[0]), m
        )  # type: ignore[misc]
        for m in METRICS
    },
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


def close(actual: Tensor, expected: list[float] | float) -> None:
    assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=1e-10)


shapes = given(
    batch=st.integers(1, 6),
    clients=st.integers(1, 4),
    classes=st.integers(1, 5),
    slots=st.integers(1, 3),
    dim=st.integers(1, 6),
    temperature=st.sampled_from([0.01, 0.07, 1.0]),
    seed=seeds,
)


@quick
@shapes
def test_contrast_is_the_equation(
    batch: int, clients: int, classes: int, slots: int, dim: int, temperature: float, seed: int
) -> None:
    features, labels = random_features(batch, dim, seed=seed), random_labels(batch, classes=classes, seed=seed)
    pool = random_prototypes(clients, classes, slots, dim, seed=seed)
    z, y = features.numpy(), labels.numpy()
    close(slot_contrast(features, labels, pool, temperature), reference.slot_contrast(z, y, pool, temperature))
    padded = pad_with_class_mean(pool)
    close(slot_contrast(features, labels, padded, temperature), reference.slot_contrast(z, y, padded, temperature))

    expected = reference.pooled_contrast(z, y, reference.as_sets(pool.pooled()), temperature)
    close(pooled_contrast(features, labels, pool, temperature), expected)
    close(pooled_contrast(features, labels, pool.pooled(), temperature), expected)


@quick
@given(batch=st.integers(1, 6), classes=st.integers(1, 5), dim=st.integers(1, 6), seed=seeds)
def test_distances_are_the_equations(batch: int, classes: int, dim: int, seed: int) -> None:
    features, labels = random_features(batch, dim, seed=seed), random_labels(batch, classes=classes, seed=seed)
    prototypes = random_prototypes(classes, 1, dim, seed=seed)
    z, y, sets = features.numpy(), labels.numpy(), reference.as_sets(prototypes)
    for metric in METRICS:
        close(distance(features, labels, prototypes, metric), reference.distance(z, y, sets, metric))
        result = prototype_distance(features, labels.clamp(min=0), labels >= 0, prototypes, metric)
        close(result, reference.prototype_distance(z, y, sets, metric))


def test_emd_is_scipys() -> None:
    features, prototype = random_features(5, 30, seed=0), random_features(1, 1, 30, seed=1)
    result = distance(features, torch.zeros(5, dtype=torch.int64), Prototypes(prototype, torch.ones(1, 1)), "emd")
    close(result, [wasserstein_distance(z, prototype.flatten().numpy()) for z in features.numpy()])


def test_mse_is_the_squared_l2_over_the_dimensions() -> None:
    features, prototypes, labels = (
        random_features(4, 8, seed=0),
        random_prototypes(3, 1, 8, seed=0, empty=0),
        torch.tensor([0, 1, 2, 0]),
    )
    assert_close(
        distance(features, labels, prototypes, "mse") * 8, distance(features, labels, prototypes, "l2").square()
    )


def test_one_client_with_one_slot_is_cross_entropy_of_cosines() -> None:
    features, labels = random_features(6, 5, seed=2), torch.tensor([0, 1, 2, 3, 0, 1])
    pool = random_prototypes(1, 4, 1, 5, seed=2, empty=0)
    cosines = cosine_similarity(features.unsqueeze(1), pool.vectors[0, :, 0].unsqueeze(0), dim=-1)
    expected = cross_entropy(cosines / 0.07, labels, reduction="none")
    assert_close(slot_contrast(features, labels, pool, 0.07), expected)
    assert_close(pooled_contrast(features, labels, pool, 0.07), expected)


@quick
@given(seed=seeds)
def test_contrast_ignores_the_order_and_absence_of_clients(seed: int) -> None:
    features, labels = random_features(5, 4, seed=seed), random_labels(5, classes=3, seed=seed)
    pool = pad_with_class_mean(random_prototypes(4, 3, 2, 4, seed=seed))
    shuffled = Prototypes(pool.vectors[[2, 0, 3, 1]][:, :, [1, 0]], pool.counts[[2, 0, 3, 1]][:, :, [1, 0]])
    absent = Prototypes(
        torch.cat([pool.vectors, torch.zeros(2, 3, 2, 4)]), torch.cat([pool.counts, torch.zeros(2, 3, 2)])
    )
    for loss in (slot_contrast, pooled_contrast):
        expected = loss(features, labels, pool, 0.07)
        assert_close(loss(features, labels, shuffled, 0.07), expected)
        assert_close(loss(features, labels, absent, 0.07), expected)


def literal_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """Eq. 11 as printed, with P(y) the labels other than y: the mean over p ≠ y of what our reading has for y."""
    classes = pool.counts.shape[1]
    others = torch.stack(
        [slot_contrast(features, (labels + p) % classes, pool, temperature) for p in range(1, classes)]
    )
    return others.mean(0)


def test_the_literal_reading_pulls_features_to_wrong_classes() -> None:
    labels = torch.arange(3).repeat(20)
    start = torch.eye(3, 4, dtype=torch.float64)[labels] + 0.4 * random_features(60, 4, seed=0)
    pool = Prototypes(torch.eye(3, 4, dtype=torch.float64).view(1, 3, 1, 4), torch.ones(1, 3, 1))

    def accuracy_after(loss: Callable[[Tensor, Tensor, Prototypes, float], Tensor]) -> float:
        z = start.clone()
        for _ in range(30):
            z.requires_grad_()
            (gradient,) = torch.autograd.grad(loss(z, labels, pool, 0.07).sum(), z)
            z = (z - 0.02 * gradient).detach()
        return float((nearest_class(z, Prototypes(pool.vectors[0], pool.counts[0])) == labels).double().mean())

    before = float((nearest_class(start, Prototypes(pool.vectors[0], pool.counts[0])) == labels).double().mean())
    assert accuracy_after(slot_contrast) >= before > 0.8
    assert accuracy_after(literal_contrast) < 0.5


@every_loss
def test_vmap_is_the_loop(loss: Loss) -> None:
    features = random_features(3, 7, 4, seed=1)
    labels = random_labels(3, 7, classes=5, seed=1)
    shared = random_prototypes(2, 5, 2, 4, seed=4)
    stacked = random_prototypes(3, 2, 5, 2, 4, seed=4)

    assert_close(
        vmap(loss, in_dims=(0, 0, None))(features, labels, shared),
        torch.stack([loss(features[i], labels[i], shared) for i in range(3)]),
    )
    assert_close(
        vmap(loss)(features, labels, stacked),
        torch.stack(
            [loss(features[i], labels[i], Prototypes(stacked.vectors[i], stacked.counts[i])) for i in range(3)]
        ),
    )

    def gradient(mapped: bool) -> Tensor:
        z = features.clone().requires_grad_()
        if mapped:
            total = vmap(loss, in_dims=(0, 0, None))(z, labels, shared).sum()
        else:
            total = torch.stack([loss(z[i], labels[i], shared).sum() for i in range(3)]).sum()
        return torch.autograd.grad(total, z)[0]

    assert_close(gradient(mapped=True), gradient(mapped=False))


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_loss_and_gradient_are_finite(loss: Loss, dtype: torch.dtype, scale: float) -> None:
    labels = random_labels(12, classes=5, seed=3)
    random = random_prototypes(2, 5, 2, 6, seed=3)
    nothing = Prototypes(torch.zeros_like(random.vectors), torch.zeros_like(random.counts))
    zeros = Prototypes(torch.zeros_like(random.vectors), torch.ones_like(random.counts))
    for pool in (random, Prototypes(random.vectors * 1e4, random.counts), nothing, zeros):
        z = (scale * random_features(12, 6, seed=3)).to(dtype).requires_grad_()
        value = loss(z, labels, Prototypes(pool.vectors.to(dtype), pool.counts.to(dtype)))
        (gradient,) = torch.autograd.grad(value.sum(), z)
        assert value.dtype == dtype
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        if pool is nothing:
            assert not value.any()
            assert not gradient.any()


@every_loss
def test_a_feature_on_its_prototype_has_a_finite_gradient(loss: Loss) -> None:
    pool = random_prototypes(1, 2, 1, 3, seed=0, empty=0)
    z = pool.vectors[0, :, 0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(z, torch.tensor([0, 1]), pool).sum(), z)
    assert gradient.isfinite().all()


def test_a_sample_of_an_unknown_class_costs_nothing() -> None:
    pool = random_prototypes(2, 3, 2, 4, seed=0, empty=0)
    pool.counts[:, 1] = 0
    pool.vectors[:, 1] = 0
    z, labels = random_features(4, 4, seed=0), torch.tensor([0, 1, 2, -1])
    for loss in LOSSES.values():
        value = loss(z, labels, pool)
        assert value.dim() == 0 or (value == 0).tolist() == [False, True, False, True]
