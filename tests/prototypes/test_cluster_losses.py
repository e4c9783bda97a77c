"""The losses on cluster prototypes (FPL, FedPLVM, FedPLCC) against plain loops, and their properties."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.prototypes import ClusterWeights, Prototypes, cluster_attraction, cluster_contrast
from tests.reference import finch as reference
from tests.support.prototype_cases import quick, random_features, random_labels, random_prototypes, seeds

ALPHAS = (1.0, 0.5, 0.25, 2.0)


def close(actual: Tensor, expected: list[float]) -> None:
    assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=1e-10)


shapes = given(
    batch=st.integers(1, 6),
    classes=st.integers(1, 5),
    slots=st.integers(1, 5),
    dim=st.integers(1, 6),
    alpha=st.sampled_from(ALPHAS),
    temperature=st.sampled_from([0.01, 0.07, 1.0]),
    phi=st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 2), Fraction(3, 5), Fraction(1)]),
    seed=seeds,
)


@quick
@shapes
def test_losses_are_the_equations(
    batch: int, classes: int, slots: int, dim: int, alpha: float, temperature: float, phi: Fraction, seed: int
) -> None:
    features, labels = random_features(batch, dim, seed=seed), random_labels(batch, classes=classes, seed=seed)
    clusters = random_prototypes(classes, slots, dim, seed=seed)
    z, y, sets = features.numpy(), labels.numpy(), reference.as_clusters(clusters)
    kept = {number: math.ceil(phi * number) for number in range(slots + 1)}
    for weights in get_args(ClusterWeights):
        close(
            cluster_contrast(features, labels, clusters, temperature, alpha, weights),
            reference.cluster_contrast(z, y, sets, temperature, alpha, weights),
        )
        close(
            cluster_attraction(features, labels, clusters, alpha, float(phi), weights),
            reference.cluster_attraction(z, y, sets, alpha, kept, weights),
        )


@pytest.mark.parametrize("temperature", [0.02, 1.0])
def test_one_cluster_a_class_is_cross_entropy_of_cosines(temperature: float) -> None:
    # FPL with one cluster a class; at temperature 1, FedProc.
    features, labels = random_features(6, 5, seed=2), torch.tensor([0, 1, 2, 3, 0, 1])
    clusters = random_prototypes(4, 1, 5, seed=2, empty=0)
    cosines = cosine_similarity(features.unsqueeze(1), clusters.vectors[:, 0].unsqueeze(0), dim=-1)
    expected = cross_entropy(cosines / temperature, labels, reduction="none")
    for weights in get_args(ClusterWeights):
        assert_close(cluster_contrast(features, labels, clusters, temperature, weights=weights), expected)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equal_weights_in_classes_of_equal_size_do_not_matter(alpha: float) -> None:
    # FedPLCC's contrast is then FedPLVM's.
    features, labels = random_features(8, 5, seed=0), random_labels(8, classes=4, seed=0)
    clusters = Prototypes(
        random_features(4, 3, 5, seed=1), torch.tensor([2.0, 5.0, 1.0, 9.0]).double().view(4, 1).expand(4, 3)
    )
    assert_close(
        cluster_contrast(features, labels, clusters, 0.07, alpha, "samples"),
        cluster_contrast(features, labels, clusters, 0.07, alpha),
    )


def test_all_clusters_attract_with_phi_1_and_the_best_always() -> None:
    features, labels = random_features(5, 4, seed=0), torch.tensor([0, 1, 2, 0, 1])
    clusters = random_prototypes(3, 4, 4, seed=0, empty=0)
    cosines = cosine_similarity(features.view(5, 1, 4), clusters.vectors[labels], dim=-1).clamp(1e-4, 1).sqrt()
    pull = cosines * (clusters.counts / clusters.counts.sum(-1, keepdim=True))[labels]
    assert_close(cluster_attraction(features, labels, clusters, 0.5, 1.0), -pull.sum(-1))
    assert_close(cluster_attraction(features, labels, clusters, 0.5, 0.01), -pull.amax(-1))
    assert_close(cluster_attraction(features, labels, clusters, 0.5, 0.26), -pull.topk(2).values.sum(-1))


def test_a_product_that_rounds_up_keeps_no_cluster_more() -> None:
    clusters = Prototypes(torch.ones(1, 100, 2).double(), torch.ones(1, 100).double())
    assert 0.07 * 100 > 7
    close(cluster_attraction(torch.ones(1, 2).double(), torch.tensor([0]), clusters, 0.5, 0.07, "one"), [-7.0])


def test_normalised_attraction_is_bounded_by_1() -> None:
    clusters = random_prototypes(3, 6, 4, seed=0, empty=0)
    value = cluster_attraction(clusters.vectors[:, 0], torch.arange(3), clusters, 0.5, 1.0)
    assert ((value <= 0) & (value >= -1)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("weights", get_args(ClusterWeights))
def test_finite_at_every_angle(dtype: torch.dtype, alpha: float, weights: ClusterWeights) -> None:
    # Cosines −1, 0 and 1, a zero feature, a zero prototype, an empty slot, an empty class and a padding sample.
    z = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, 0], [1, 0], [1, 0], [2, 0]], dtype=dtype, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 0, 2, -1, 1])
    clusters = Prototypes(
        torch.tensor([[[3, 0], [0, 0]], [[-2, 0], [0, 0]], [[0, 0], [0, 0]]], dtype=dtype),
        torch.tensor([[1, 1e6], [3, 0], [0, 0]], dtype=dtype),
    )
    for value in (
        cluster_contrast(z, labels, clusters, 0.005, alpha, weights),
        cluster_attraction(z, labels, clusters, alpha, 0.5, weights),
    ):
        (gradient,) = torch.autograd.grad(value.sum(), z)
        assert value.dtype == dtype
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        assert not value[4:6].any()
        assert not gradient[4:6].any()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_are_the_slopes(alpha: float) -> None:
    # Positive coordinates: away from the kink at 1e-4.
    z, labels = (random_features(4, 3, seed=0).abs() + 0.1).requires_grad_(), torch.tensor([0, 1, 2, 1])
    clusters = Prototypes(
        random_features(3, 3, 3, seed=1).abs() + 0.1, random_prototypes(3, 3, 3, seed=1, empty=0).counts
    )
    assert torch.autograd.gradcheck(lambda z: cluster_contrast(z, labels, clusters, 0.07, alpha, "samples"), z)
    assert torch.autograd.gradcheck(lambda z: cluster_attraction(z, labels, clusters, alpha, 0.5), z)


def test_a_class_alone_costs_nothing() -> None:
    clusters = random_prototypes(1, 3, 4, seed=0, empty=0)
    assert not cluster_contrast(random_features(5, 4, seed=0), torch.zeros(5, dtype=torch.int64), clusters, 0.07).any()


@pytest.mark.parametrize("phi", [0.0, -1.0, 1.1, float("nan")])
def test_phi_is_a_part(phi: float) -> None:
    with pytest.raises(UserError, match=r"^invalid value .* for phi: "):
        cluster_attraction(torch.zeros(1, 2), torch.tensor([0]), random_prototypes(1, 1, 2, seed=0), 0.5, phi)
