"""The type, aggregation, padding and the nearest-prototype rule."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.prototypes import (
    Prototypes,
    Weighting,
    bound_pool,
    mean_over_holders,
    nearest_class,
    pad_with_class_mean,
)
from tests.reference import prototypes as reference
from tests.support.prototype_cases import quick, random_features, random_prototypes, seeds

WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)

shapes = given(
    clients=st.integers(1, 4), classes=st.integers(1, 4), slots=st.integers(1, 3), dim=st.integers(1, 4), seed=seeds
)


def client(prototypes: Prototypes, i: int) -> Prototypes:
    return Prototypes(prototypes.vectors[i], prototypes.counts[i])


@quick
@shapes
def test_a_pool_holds_every_prototype_once(clients: int, classes: int, slots: int, dim: int, seed: int) -> None:
    prototypes = random_prototypes(clients, classes, slots, dim, seed=seed)
    pool = prototypes.pooled()
    assert pool.counts.shape[-1] == max(1, int(prototypes.filled.sum((0, 2)).max()))
    for c in range(classes):
        filled = prototypes.filled[:, c]
        assert torch.equal(pool.vectors[c][pool.filled[c]], prototypes.vectors[:, c][filled])
        assert torch.equal(pool.counts[c][pool.filled[c]], prototypes.counts[:, c][filled])
        assert_close(pool.class_mean()[c], prototypes.vectors[:, c][filled].sum(0) / max(1, int(filled.sum())))
    assert pool.present.tolist() == prototypes.present.any(0).tolist()
    wide = pool.widen(pool.counts.shape[-1] + 2)
    assert_close(wide.compact(), pool)


def test_prototypes_are_never_cut() -> None:
    with pytest.raises(ValueError, match="3 slots per class do not fit into 2"):
        random_prototypes(1, 3, 1, seed=0).widen(2)


@quick
@shapes
def test_aggregation_is_the_equation(clients: int, classes: int, slots: int, dim: int, seed: int) -> None:
    del slots
    uploads = random_prototypes(clients, classes, 1, dim, seed=seed)
    plain = [
        {
            c: (uploads.vectors[i, c, 0].numpy(), int(uploads.counts[i, c, 0]))
            for c in range(classes)
            if uploads.counts[i, c, 0] > 0
        }
        for i in range(clients)
    ]
    for weighting in WEIGHTINGS:
        result = mean_over_holders(uploads, weighting)
        assert torch.equal(result.counts, uploads.counts.sum(0))
        expected = reference.mean_over_holders(plain, weighting)
        for c in range(classes):
            vector = torch.tensor(expected[c]) if c in expected else torch.zeros(dim, dtype=torch.float64)
            assert_close(result.vectors[c, 0], vector, atol=1e-10, rtol=1e-10)


def test_uniform_and_samples_coincide_for_equal_counts_and_literal_shrinks() -> None:
    uploads = random_prototypes(4, 3, 1, 5, seed=1)
    equal = Prototypes(uploads.vectors, 7 * uploads.filled.double())
    uniform, samples, literal = (mean_over_holders(equal, w) for w in WEIGHTINGS)
    assert_close(uniform, samples)
    holders = equal.filled.sum(0).clamp(min=1).unsqueeze(-1)
    assert_close(literal.vectors * holders, uniform.vectors)


@quick
@shapes
def test_padding_is_the_equation(clients: int, classes: int, slots: int, dim: int, seed: int) -> None:
    pool = random_prototypes(clients, classes, slots, dim, seed=seed)
    padded = pad_with_class_mean(pool)
    expected = reference.pad_with_class_mean([reference.as_sets(client(pool, i)) for i in range(clients)], slots)
    for i in range(clients):
        result = reference.as_sets(client(padded, i))
        assert result.keys() == expected[i].keys()
        for c, vectors in expected[i].items():
            assert_close(torch.tensor(np.array(result[c])), torch.tensor(np.array(vectors)), atol=1e-10, rtol=1e-10)
    # Complete sets are untouched; classes nobody has stay empty.
    complete = pool.filled.all(-1)
    assert torch.equal(padded.vectors[complete], pool.vectors[complete])
    assert torch.equal(padded.counts[complete], pool.counts[complete])
    assert torch.equal(padded.present, pool.present.any(0).expand(clients, classes))


def test_a_client_without_a_class_gets_copies_of_the_mean_of_all_uploaded() -> None:
    vectors, counts = torch.zeros(3, 1, 2, 1), torch.zeros(3, 1, 2)
    vectors[0, 0, :, 0], counts[0, 0] = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])
    vectors[1, 0, 0, 0], counts[1, 0, 0] = 6.0, 1.0  # one prototype of two: replaced as well
    padded = pad_with_class_mean(Prototypes(vectors, counts))
    assert padded.vectors.flatten(1).tolist() == [[1, 2], [3, 3], [3, 3]]
    assert padded.counts.flatten(1).tolist() == [[4, 5], [1, 1], [1, 1]]


@quick
@shapes
def test_a_bounded_pool_is_the_clusters_of_each_class(
    clients: int, classes: int, slots: int, dim: int, seed: int
) -> None:
    pool = random_prototypes(clients, classes, slots, dim, seed=seed)
    most = int(pool.filled.sum((0, 2)).max())
    for size in (1, 2, 4):
        bounded = bound_pool(pool, size, seed)
        if most <= size:
            assert bounded is pool
            continue
        assert bounded.counts.shape == (size, classes, 1)
        rows = pool.pooled()
        for c in range(classes):
            points, counts = (x[c][rows.filled[c]].numpy() for x in rows)
            groups = reference.kmeans(points, size, seed, c, restarts=1, weights=counts) if len(points) else []
            expected = [np.average(points[group], 0, counts[group]) for group in groups]
            found = bounded.vectors[:, c, 0][bounded.filled[:, c, 0]]
            assert_close(found, torch.tensor(np.array(expected)).view_as(found), atol=1e-10, rtol=1e-10)
            if len(points) <= size:
                assert_close(found, rows.vectors[c][rows.filled[c]])  # its own
        assert_close(bounded.counts.sum((0, 2)), pool.counts.sum((0, 2)))


def test_a_bounded_pool_depends_on_its_key_alone() -> None:
    pool = random_prototypes(20, 3, 2, 4, seed=0, empty=0)
    assert torch.equal(bound_pool(pool, 5, 1).vectors, bound_pool(pool, 5, 1).vectors)
    assert not torch.equal(bound_pool(pool, 5, 1).vectors, bound_pool(pool, 5, 2).vectors)


@quick
@shapes
def test_nearest_is_the_loop(clients: int, classes: int, slots: int, dim: int, seed: int) -> None:
    features = random_features(clients, 6, dim, seed=seed)
    stacked = random_prototypes(clients, classes, slots, dim, seed=seed + 1)
    shared = client(stacked, 0)
    allowed = torch.rand(clients, classes, generator=torch.Generator().manual_seed(seed)) < 0.6
    for i in range(clients):
        z, own = features[i].numpy(), {int(c) for c in allowed[i].nonzero()}
        expected = torch.tensor(reference.nearest_class(z, reference.as_sets(client(stacked, i))))
        assert torch.equal(nearest_class(features[i], client(stacked, i)), expected)
        assert torch.equal(nearest_class(features, stacked)[i], expected)
        expected = torch.tensor(reference.nearest_class(z, reference.as_sets(shared)))
        assert torch.equal(nearest_class(features, shared)[i], expected)
        expected = torch.tensor(reference.nearest_class(z, reference.as_sets(shared), own))
        assert torch.equal(nearest_class(features[i], shared, allowed[i]), expected)
        assert torch.equal(nearest_class(features, shared, allowed)[i], expected)


def test_nothing_to_choose_is_minus_one() -> None:
    features = random_features(2, 3, 4, seed=0)
    nothing = Prototypes(torch.zeros(5, 2, 4, dtype=torch.float64), torch.zeros(5, 2))
    assert nearest_class(features, nothing).tolist() == [[-1] * 3] * 2
    some = random_prototypes(5, 2, 4, seed=0, empty=0)
    allowed = torch.tensor([[False] * 5, [False, False, True, False, False]])
    assert nearest_class(features, some, allowed).tolist() == [[-1] * 3, [2] * 3]


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1.0), (0.0, 1e-6), (0.0, 1e4), (1e3, 1.0)])
def test_nearest_survives_scale_and_offset_in_float32(offset: float, scale: float) -> None:
    prototypes = random_prototypes(6, 2, 16, seed=5, empty=0)
    features = (scale * random_features(50, 16, seed=5) + offset).float()
    far = Prototypes((scale * prototypes.vectors + offset).float(), prototypes.counts.float())
    exact = Prototypes(far.vectors.double(), far.counts.double())
    expected = torch.tensor(reference.nearest_class(features.double().numpy(), reference.as_sets(exact)))
    assert torch.equal(nearest_class(features, far), expected)
