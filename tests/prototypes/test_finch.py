"""FINCH against union-find, the finch-clust package, and itself one client at a time."""

from __future__ import annotations

import importlib
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.prototypes import Centroids, Prototypes, class_means, finch, finch_pool, segments
from protofed.prototypes.finch import hierarchy
from tests.reference import finch as reference
from tests.support.prototype_cases import Dispatched, quick, random_features, random_labels, random_prototypes, seeds

CENTROIDS: tuple[Centroids, ...] = get_args(Centroids)
KINDS = ("gaussian", "blobs", "copies", "scaled", "integers")
kinds = st.sampled_from(KINDS)


def rows_of(kind: str, *shape: int, seed: int) -> Tensor:
    """Rows, [..., D], without structure, in groups, repeated, repeated at other lengths, or full of ties and zeros."""
    rng = torch.Generator().manual_seed(seed)
    rows = random_features(*shape, seed=seed)
    few = rows.flatten(0, -2)[torch.randint(max(1, rows[..., 0].numel() // 4), shape[:-1], generator=rng)]
    length = 10 ** (4 * torch.rand(*shape[:-1], 1, generator=rng, dtype=torch.float64) - 2)
    return {
        "gaussian": rows,
        "blobs": few + 0.05 * rows,
        "copies": few,
        "scaled": few * length,
        "integers": torch.randint(-1, 2, shape, generator=rng).double(),
    }[kind]


def levels(points: Tensor) -> list[list[int]]:
    """One segment's distinct levels, finest first."""
    columns: list[list[int]] = hierarchy(points.unsqueeze(0), points.new_ones(1, len(points), dtype=torch.bool))[
        0
    ].T.tolist()
    return [column for i, column in enumerate(columns) if column not in columns[:i]]


def one_class(points: Tensor) -> Prototypes:
    """The clusters of points that are all of one client and class, without empty slots."""
    result = finch(points.unsqueeze(0), torch.zeros(1, len(points), dtype=torch.int64), 1)
    return Prototypes(result.vectors[0, 0], result.counts[0, 0])


def same_partition(a: list[int], b: list[int]) -> bool:
    """Equal up to the numbers."""
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


sizes = given(
    clients=st.integers(1, 3),
    rows=st.integers(1, 60),
    classes=st.integers(1, 3),
    dim=st.integers(1, 5),
    kind=kinds,
    seed=seeds,
)


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(rows=st.integers(1, 60), dim=st.integers(1, 5), seed=seeds)
def test_every_level_is_union_finds(kind: str, rows: int, dim: int, seed: int) -> None:
    points = rows_of(kind, rows, dim, seed=seed)
    directed = points.any(-1)
    result = levels(points)
    if not directed.any():
        assert result == [[-1] * rows]
        return
    expected = torch.full((len(wanted := reference.hierarchy(points[directed].numpy())), rows), -1)
    expected[:, directed] = torch.tensor(wanted)
    assert result == expected.tolist()


@quick
@sizes
def test_prototypes_are_the_clusters_means(
    clients: int, rows: int, classes: int, dim: int, kind: str, seed: int
) -> None:
    features, labels = (
        rows_of(kind, clients, rows, dim, seed=seed),
        random_labels(clients, rows, classes=classes, seed=seed),
    )
    weights = 0.5 + random_features(clients, rows, seed=seed + 1).abs()
    for given_weights, centroids in [(None, CENTROIDS[0]), (None, CENTROIDS[1]), *((weights, c) for c in CENTROIDS)]:
        result = finch(features, labels, classes, given_weights, centroids)
        most = 1
        for i in range(clients):
            for c in range(classes):
                mine = labels[i] == c
                weight = torch.ones(rows) if given_weights is None else weights[i]
                expected = reference.finch(
                    features[i][mine].numpy(), weight[mine].double().numpy(), centroids == "weighted"
                )
                most = max(most, number := len(expected))
                assert int(result.filled[i, c].sum()) == number
                for slot, (mean, count) in enumerate(expected):
                    assert_close(result.vectors[i, c, slot], torch.tensor(mean), atol=1e-10, rtol=1e-10)
                    assert float(result.counts[i, c, slot]) == pytest.approx(count)
                assert not result.vectors[i, c, number:].any()
        assert result.counts.shape == (clients, classes, most)


@quick
@example(clients=2, rows=1, classes=2, dim=3, kind="gaussian", seed=0)
@sizes
def test_a_client_is_clustered_as_if_alone(
    clients: int, rows: int, classes: int, dim: int, kind: str, seed: int
) -> None:
    features, labels = (
        rows_of(kind, clients, rows, dim, seed=seed),
        random_labels(clients, rows, classes=classes, seed=seed),
    )
    together = finch(features, labels, classes)
    padded = finch(pad(features, (0, 0, 2, 5), value=7.0), pad(labels, (2, 5), value=-1), classes)
    assert torch.equal(padded.vectors, together.vectors)
    assert torch.equal(padded.counts, together.counts)
    for i in range(clients):
        alone = finch(features[i : i + 1], labels[i : i + 1], classes).widen(together.counts.shape[-1])
        assert torch.equal(alone.vectors[0], together.vectors[i])
        assert torch.equal(alone.counts[0], together.counts[i])


@pytest.mark.parametrize("block", [1, 50, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, kind: str, block: int) -> None:
    features, labels = rows_of(kind, 3, 80, 4, seed=5), random_labels(3, 80, classes=3, seed=5)
    part = segments(labels, 3)
    expected = hierarchy(part.gather(features), part.mask)
    monkeypatch.setattr(importlib.import_module("protofed.prototypes.finch"), "_BLOCK", block)
    assert torch.equal(hierarchy(part.gather(features), part.mask), expected)


def test_the_host_waits_once_a_level() -> None:
    features, labels = rows_of("gaussian", 3, 300, 4, seed=5), random_labels(3, 300, classes=3, seed=5)
    part = segments(labels, 3)
    with Dispatched() as seen:
        found = hierarchy(part.gather(features), part.mask).shape[-1]
    assert found >= 3
    assert seen.host_waits() == found + 1  # and once more, for the level that is not there


def package(points: Tensor) -> list[list[int]]:
    """The levels of the finch-clust package, finest first."""
    from finch import FINCH

    columns, _, _ = FINCH(points.numpy(), ensure_early_exit=False, verbose=False)
    return [[int(x) for x in column] for column in np.asarray(columns).reshape(len(points), -1).T]


@pytest.mark.filterwarnings("ignore:pynndescent")
@pytest.mark.parametrize("kind", ["gaussian", "blobs", "copies"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 20, 100, 400])
def test_every_level_is_the_packages(kind: str, rows: int) -> None:
    for seed in range(8):
        points = rows_of(kind, rows, 6, seed=seed)
        ours, theirs = levels(points), package(points)
        assert len(ours) == len(theirs)
        # From the third level on, the mean of all rows is not the mean of means.
        assert len(ours) >= (3 if rows == 400 and kind != "copies" else 1)
        assert all(same_partition(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.filterwarnings("ignore:pynndescent")
def test_exact_ties_and_copies_are_the_packages() -> None:
    # Rows of length 1: the package, in float32, computes their cosines, 0 and ±1, without rounding.
    axes = torch.cat([torch.eye(8), -torch.eye(8)])
    for seed in range(40):
        points = axes[torch.randint(16, (2 + seed,), generator=torch.Generator().manual_seed(seed))]
        assert same_partition(levels(points)[0], package(points)[0])
    assert same_partition(levels(torch.ones(9, 1))[-1], package(torch.ones(9, 1))[-1])


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_up_to_three_rows_are_one_cluster(kind: str, rows: int) -> None:
    for seed in range(20):
        points = rows_of(kind, rows, 4, seed=seed)
        assert one_class(points).counts.tolist() == [int(points.any(-1).sum()) or rows]


def test_two_tight_pairs_are_two_clusters() -> None:
    points = torch.tensor([[1.0, 0.01], [0.01, 1.0], [1.0, 0.0], [0.0, 1.0]])
    result = one_class(points)
    assert result.counts.tolist() == [2, 2]
    assert_close(result.vectors, torch.tensor([[1.0, 0.005], [0.005, 1.0]]))
    assert levels(points) == [[0, 1, 0, 1]]


def test_a_level_of_one_cluster_is_discarded() -> None:
    # Four groups, each row nearest to one of its own; their means, at 1°, 30.5°, 65° and 150°, make one chain.
    degrees = torch.tensor([0.0, 1, 2, 30, 31, 64, 66, 149, 151]).deg2rad()
    points = torch.stack([degrees.cos(), degrees.sin()], -1)
    assert levels(points) == [[0, 0, 0, 1, 1, 2, 2, 3, 3]]
    assert one_class(points).counts.tolist() == [3, 2, 2, 2]


@quick
@given(rows=st.integers(1, 60), dim=st.integers(2, 5), seed=seeds, kind=st.sampled_from(["gaussian", "blobs"]))
def test_lengths_and_order_do_not_matter(rows: int, dim: int, seed: int, kind: str) -> None:
    points = rows_of(kind, rows, dim, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    first = levels(points)[0]
    scale = 10 ** (6 * torch.rand(rows, 1, generator=rng, dtype=torch.float64) - 3)
    assert levels(points * scale)[0] == first  # higher levels average rows, and a longer row counts for more
    for common in (1e-200, 1e-30, 2.0, 1e100):
        assert levels(points * common) == levels(points)
    order = torch.randperm(rows, generator=rng)
    shuffled = levels(points[order])
    assert len(shuffled) == len(levels(points))
    for a, b in zip(shuffled, levels(points), strict=True):
        assert same_partition(a, torch.tensor(b)[order].tolist())


@quick
@given(rows=st.integers(4, 80), dim=st.integers(1, 5), kind=kinds, seed=seeds)
def test_levels_halve_and_never_end_in_one_cluster(rows: int, dim: int, kind: str, seed: int) -> None:
    points = rows_of(kind, rows, dim, seed=seed)
    numbers = [len(set(column) - {-1}) for column in levels(points)]
    assert numbers[0] <= max(1, rows // 2)
    assert all(2 <= after <= before // 2 for before, after in pairwise(numbers))


def test_scaled_copies_are_ties() -> None:
    # All copies of one direction point to the first of them, however their lengths round.
    direction = random_features(1, 7, seed=3).float()
    points = direction * torch.arange(1, 40).unsqueeze(-1)
    assert one_class(points).counts.tolist() == [39]


def test_single_precision_finds_the_same_clusters() -> None:
    features, labels = rows_of("blobs", 2, 100, 8, seed=0).float(), random_labels(2, 100, classes=3, seed=0)
    single, double = finch(features, labels, 3), finch(features.double(), labels, 3)
    assert single.vectors.dtype == single.counts.dtype == torch.float32
    assert_close(single, Prototypes(double.vectors.float(), double.counts.float()))


def test_zero_rows_are_left_out_and_a_class_of_them_is_kept() -> None:
    features = torch.zeros(1, 8, 2)
    features[0, 1], features[0, 4] = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0])
    labels = torch.tensor([[0, 0, 0, 1, 0, 1, 1, -1]])
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -1.0]])
    result = finch(features, labels, 3, weights)
    assert result.counts.tolist() == [[[7.0], [17.0], [0.0]]]
    assert result.vectors.tolist() == [[[[2.0, 0.0]], [[0.0, 0.0]], [[0.0, 0.0]]]]
    assert finch(features, labels, 3).counts.tolist() == [[[2.0], [3.0], [0.0]]]
    alone = one_class(torch.tensor([[0.0, 0.0], [5.0, 1.0], [0.0, 0.0]]))
    assert alone.vectors.tolist() == [[5.0, 1.0]]
    assert alone.counts.tolist() == [1]


def test_a_row_that_is_not_a_number_harms_its_class_only() -> None:
    features, labels = rows_of("blobs", 2, 40, 3, seed=1), random_labels(2, 40, classes=2, seed=1)
    expected = finch(features, labels, 2)
    broken = features.clone()
    broken[0, int((labels[0] == 0).nonzero()[0])] = torch.nan
    result = finch(broken, labels, 2).widen(expected.counts.shape[-1])
    assert result.vectors[0, 0].isnan().any()
    assert torch.equal(result.vectors[0, 1], expected.vectors[0, 1])
    assert torch.equal(result.vectors[1], expected.vectors[1])


def test_nothing_is_empty() -> None:
    for shape in ((2, 3), (2, 0), (0, 3)):
        result = finch(torch.zeros(*shape, 4), torch.full(shape, -1), 5)
        assert result.counts.shape == (shape[0], 5, 1)
        assert not result.counts.any()
    assert not finch_pool(Prototypes(torch.zeros(3, 2, 2, 4), torch.zeros(3, 2, 2))).counts.any()


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_is_positive(weight: float) -> None:
    with pytest.raises(UserError, match=r"^invalid value .* for weights: "):
        finch(torch.ones(1, 2, 1), torch.zeros(1, 2, dtype=torch.int64), 1, torch.tensor([[1.0, weight]]))


def test_centroids_have_names() -> None:
    with pytest.raises(UserError, match="did you mean 'weighted'"):
        finch_pool(random_prototypes(2, 2, 2, 3, seed=0), "Weighted")  # type: ignore[arg-type]


@quick
@given(clients=st.integers(1, 8), classes=st.integers(1, 3), slots=st.integers(1, 4), dim=st.integers(1, 4), seed=seeds)
def test_a_pool_is_clustered_class_by_class(clients: int, classes: int, slots: int, dim: int, seed: int) -> None:
    pool = random_prototypes(clients, classes, slots, dim, seed=seed)
    for centroids in CENTROIDS:
        result = finch_pool(pool, centroids)
        for c in range(classes):
            filled = pool.filled[:, c]
            rows, counts = pool.vectors[:, c][filled].numpy(), pool.counts[:, c][filled].numpy()
            expected = reference.finch(rows, counts, centroids == "weighted")
            assert int(result.filled[c].sum()) == len(expected)
            for slot, (mean, count) in enumerate(expected):
                assert_close(result.vectors[c, slot], torch.tensor(mean), atol=1e-10, rtol=1e-10)
                assert float(result.counts[c, slot]) == count
    assert_close(result.counts.sum(-1), pool.counts.sum((0, 2)))


def test_weighted_centroids_at_the_server_are_means_of_samples() -> None:
    # Three clients with one cluster a class each: at most three rows, one cluster, the mean of all samples.
    features = 5 + random_features(3, 3, 4, seed=0)
    labels = torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 0]])
    result = finch_pool(finch(features, labels, 2), "weighted")
    assert_close(result, Prototypes(*(x[0] for x in class_means(features.view(1, 9, 4), labels.view(1, 9), 2))))
