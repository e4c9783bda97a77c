"""Class means, segments, k-means and DBSCAN against plain loops, scikit-learn and themselves one client at a time."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.cluster import DBSCAN, KMeans
from torch import Tensor
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.prototypes import Prototypes, Segments, Start, class_means, dbscan, finch, kmeans, quantile_eps, segments
from protofed.prototypes.dbscan import dense_regions
from protofed.prototypes.segments import patience
from tests.reference import prototypes as reference
from tests.support.prototype_cases import Dispatched, quick, random_features, random_labels, seeds

STARTS: tuple[Start, ...] = get_args(Start)


def blobs(clients: int, rows: int, classes: int, dim: int, seed: int, spread: float = 0.1) -> tuple[Tensor, Tensor]:
    """Each class of each client is up to three tight groups of points; some rows are exact copies of others."""
    rng = torch.Generator().manual_seed(seed)
    labels = random_labels(clients, rows, classes=classes, seed=seed)
    middle = 5 * torch.randn((classes, 3, dim), generator=rng, dtype=torch.float64)
    group = torch.randint(3, (clients, rows), generator=rng)
    noise = spread * torch.randn((clients, rows, dim), generator=rng, dtype=torch.float64)
    copy = torch.rand((clients, rows), generator=rng) < 0.2
    return middle[labels.clamp(min=0), group] + noise.masked_fill(copy.unsqueeze(-1), 0), labels


def one_client(prototypes: Prototypes, client: int) -> Prototypes:
    return Prototypes(prototypes.vectors[client], prototypes.counts[client])


sizes = given(
    clients=st.integers(1, 3), rows=st.integers(0, 24), classes=st.integers(1, 4), dim=st.integers(1, 5), seed=seeds
)


@quick
@sizes
def test_class_means_are_the_means(clients: int, rows: int, classes: int, dim: int, seed: int) -> None:
    features, labels = (
        random_features(clients, rows, dim, seed=seed),
        random_labels(clients, rows, classes=classes, seed=seed),
    )
    result = class_means(features, labels, classes)
    for i in range(clients):
        expected = reference.class_means(features[i].numpy(), labels[i].numpy())
        for c in range(classes):
            mean, count = expected.get(c, (np.zeros(dim), 0))
            assert result.counts[i, c, 0] == count
            assert_close(result.vectors[i, c, 0], torch.tensor(mean), atol=1e-12, rtol=1e-12)


@quick
@sizes
def test_segments_hold_each_sample_once_in_order(clients: int, rows: int, classes: int, dim: int, seed: int) -> None:
    features, labels = (
        random_features(clients, rows, dim, seed=seed),
        random_labels(clients, rows, classes=classes, seed=seed),
    )
    part = segments(labels, classes)
    points = part.gather(features)
    pairs = list(zip(part.clients.tolist(), part.classes.tolist(), strict=True))
    assert pairs == [(i, c) for i in range(clients) for c in range(classes) if (labels[i] == c).any()]
    for s, (i, c) in enumerate(pairs):
        assert torch.equal(points[s][part.mask[s]], features[i][labels[i] == c])
        assert not points[s][~part.mask[s]].any()
    grid = part.each(lambda some: (some.gather(features), some.mask.double()))
    assert grid.vectors.shape == (clients, classes, *points.shape[1:])
    assert grid.counts.sum() == (labels >= 0).sum()
    for s, (i, c) in enumerate(pairs):
        assert torch.equal(grid.vectors[i, c], points[s])


def test_segments_of_like_length_come_together() -> None:
    sizes = (1, 2, 3, 4, 5, 60, 64, 65, 200)
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)]).unsqueeze(0)
    seen: list[list[int]] = []

    def work(part: Segments) -> tuple[Tensor, Tensor]:
        seen.append(part.mask.sum(1).tolist())
        assert part.mask.shape[1] == max(seen[-1])
        return part.mask.double().unsqueeze(-1), part.mask.double()

    segments(labels, len(sizes)).each(work)
    assert seen == [[1], [2], [3, 4], [5], [60, 64], [65], [200]]


@pytest.mark.parametrize(
    "cluster",
    [
        lambda x, y: kmeans(x, y, 6, 3, torch.arange(len(y)), restarts=2),
        lambda x, y: finch(x, y, 6),
        lambda x, y: dbscan(x, y, 6, 0.8, 3),
    ],
    ids=["kmeans", "finch", "dbscan"],
)
def test_a_class_is_clustered_as_if_alone_however_long_the_others_are(
    cluster: Callable[[Tensor, Tensor], Prototypes],
) -> None:
    sizes = torch.tensor([[1, 3, 40, 150, 0, 7], [90, 2, 0, 5, 33, 71]])
    labels = torch.stack([torch.arange(6).repeat_interleave(row) for row in sizes])  # 201 rows each
    features = random_features(2, int(sizes[0].sum()), 4, seed=1)
    together = cluster(features, labels)
    for c in range(6):
        alone = cluster(features, torch.where(labels == c, c, -1))
        slots = alone.counts.shape[-1]
        assert torch.equal(together.counts[:, c, :slots], alone.counts[:, c])
        assert not together.counts[:, c, slots:].any()
        assert_close(together.vectors[:, c, :slots], alone.vectors[:, c])


def test_segments_ask_the_device_once() -> None:
    with Dispatched() as seen:
        segments(random_labels(3, 20, classes=4, seed=0), 4)
    assert seen.host_waits() == 0  # the one transfer is a list of three numbers
    assert seen.calls["stack"] == 1


def test_a_label_beyond_the_classes_is_refused() -> None:
    with pytest.raises(UserError, match="invalid value '3' for labels: "):
        segments(torch.tensor([[0, 3]]), 3)


@quick
@given(
    clients=st.integers(1, 3),
    rows=st.integers(0, 24),
    classes=st.integers(1, 3),
    k=st.integers(1, 4),
    iterations=st.sampled_from([1, 2, 100]),
    tolerance=st.sampled_from([1e-4, 1.0]),
    seed=seeds,
)
def test_kmeans_is_lloyd_from_the_same_starts(
    clients: int, rows: int, classes: int, k: int, iterations: int, tolerance: float, seed: int
) -> None:
    features, labels = blobs(clients, rows, classes, 3, seed, spread=1.0)
    keys = torch.arange(clients) + seed
    result = kmeans(features, labels, classes, k, keys, restarts=3, iterations=iterations, tolerance=tolerance)
    assert result.counts.shape == (clients, classes, k)
    for i in range(clients):
        for c in range(classes):
            points = features[i][labels[i] == c].numpy()
            groups = reference.kmeans(points, k, int(keys[i]), c, 3, iterations, tolerance) if len(points) else []
            assert result.counts[i, c].tolist() == [len(g) for g in groups] + [0] * (k - len(groups))
            for slot, group in enumerate(groups):
                assert_close(result.vectors[i, c, slot], torch.tensor(points[group].mean(0)), atol=1e-10, rtol=1e-10)
            assert not result.vectors[i, c, len(groups) :].any()


@quick
@given(rows=st.integers(1, 24), classes=st.integers(1, 3), k=st.integers(1, 4), seed=seeds)
def test_a_sample_counts_as_often_as_its_weight(rows: int, classes: int, k: int, seed: int) -> None:
    features, labels = blobs(2, rows, classes, 3, seed, spread=1.0)
    weights = torch.randint(1, 9, (2, rows), generator=torch.Generator().manual_seed(seed)).double() / 4
    keys = torch.tensor([seed, seed + 1])
    result = kmeans(features, labels, classes, k, keys, weights=weights)
    for i in range(2):
        for c in range(classes):
            points, counts = features[i][labels[i] == c].numpy(), weights[i][labels[i] == c].numpy()
            groups = reference.kmeans(points, k, int(keys[i]), c, weights=counts) if len(points) else []
            assert result.counts[i, c].tolist() == [counts[g].sum() for g in groups] + [0] * (k - len(groups))
            for slot, group in enumerate(groups):
                expected = torch.tensor(np.average(points[group], 0, counts[group]))
                assert_close(result.vectors[i, c, slot], expected, atol=1e-10, rtol=1e-10)
    ones = kmeans(features, labels, classes, k, keys, weights=torch.ones_like(weights))
    assert_close(ones, kmeans(features, labels, classes, k, keys), atol=0, rtol=0)


def of_a_gpu(device: torch.device) -> int:
    """How often a GPU is asked."""
    del device
    return patience(torch.device("cuda"))


def test_a_gpu_is_asked_at_every_fourth_step() -> None:
    assert (patience(torch.device("cuda")), patience(torch.device("cpu"))) == (4, 1)


@pytest.mark.parametrize("start", STARTS)
def test_asking_less_often_changes_no_bit_of_kmeans(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("protofed.prototypes.kmeans")
    monkeypatch.setattr(Segments, "_by_length", lambda part: [part])  # a GPU has all of them at once
    for seed in range(8):
        features, labels = blobs(3, 60, 2, 3, seed, spread=2.0)
        expected = kmeans(features, labels, 2, 4, torch.arange(3), start)
        with monkeypatch.context() as patch, Dispatched() as seen:
            patch.setattr(module, "patience", of_a_gpu)
            result = kmeans(features, labels, 2, 4, torch.arange(3), start)
        assert torch.equal(result.vectors, expected.vectors)
        assert torch.equal(result.counts, expected.counts)
        assert seen.host_waits() == seen.calls["bmm"] // 4  # one matrix product a step


def test_asking_less_often_changes_no_region_of_dbscan(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("protofed.prototypes.dbscan")
    chain = torch.randperm(200, generator=torch.Generator().manual_seed(0)).double().view(1, -1, 1)
    points, mask = torch.cat([chain, 3 * chain, 0.5 * chain]), torch.ones(3, 200, dtype=torch.bool)
    expected = dense_regions(points, mask, 1.0, 2)
    monkeypatch.setattr(module, "patience", of_a_gpu)
    assert torch.equal(dense_regions(points, mask, 1.0, 2), expected)
    assert expected.amax(-1).tolist() == [0, -1, 0]


@quick
@example(clients=4, rows=150, classes=3, k=4, start="random", tolerance=1.0, seed=2)  # some stop early
@example(clients=2, rows=0, classes=2, k=2, start="random", tolerance=1e-4, seed=0)
@given(
    clients=st.integers(2, 4),
    rows=st.integers(1, 30),
    classes=st.integers(1, 3),
    k=st.integers(1, 4),
    start=st.sampled_from(STARTS),
    tolerance=st.sampled_from([1e-4, 1.0]),
    seed=seeds,
)
def test_kmeans_of_a_client_ignores_the_others_and_padding(
    clients: int, rows: int, classes: int, k: int, start: Start, tolerance: float, seed: int
) -> None:
    features, labels = blobs(clients, rows, classes, 3, seed, spread=2.0)
    keys = torch.arange(clients) * 7 + seed
    together = kmeans(features, labels, classes, k, keys, start, tolerance=tolerance)
    padded = kmeans(
        torch.nn.functional.pad(features, (0, 0, 2, 5)),
        torch.nn.functional.pad(labels, (2, 5), value=-1),
        classes,
        k,
        keys,
        start,
        tolerance=tolerance,
    )
    assert_close(padded, together, atol=1e-12, rtol=1e-12)
    for i in range(clients):
        alone = kmeans(features[i : i + 1], labels[i : i + 1], classes, k, keys[i : i + 1], start, tolerance=tolerance)
        assert_close(one_client(alone, 0), one_client(together, i), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("start", STARTS)
def test_kmeans_is_as_good_as_scikit_learn_on_clear_blobs(start: Start) -> None:
    rng = torch.Generator().manual_seed(3)
    middle = 10 * torch.randn((4, 8), generator=rng, dtype=torch.float64)
    features = (middle.repeat(30, 1) + torch.randn((120, 8), generator=rng, dtype=torch.float64)).unsqueeze(0)
    result = kmeans(features, torch.zeros(1, 120, dtype=torch.int64), 1, 4, torch.tensor([5]), start, restarts=10)
    inertia = torch.cdist(features[0], result.vectors[0, 0]).amin(-1).square().sum()
    assert inertia <= 1.001 * KMeans(4, n_init=10, random_state=0).fit(features[0].numpy()).inertia_
    assert result.counts[0, 0].tolist() == [30, 30, 30, 30]


def test_from_the_same_start_kmeans_is_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        points = random_features(60, 5, seed=seed)
        begin = points[:4]
        starts = importlib.import_module("protofed.prototypes.kmeans")._STARTS
        monkeypatch.setitem(starts, "random", lambda *_, begin=begin, **__: begin.view(1, 1, 4, 5))
        ours = kmeans(points.unsqueeze(0), torch.zeros(1, 60, dtype=torch.int64), 1, 4, torch.tensor([0]), restarts=1)
        theirs = KMeans(4, init=begin.numpy(), n_init=1, tol=0).fit(points.numpy())
        order = list(dict.fromkeys(theirs.labels_.tolist()))  # by first members
        assert_close(ours.vectors[0, 0], torch.tensor(theirs.cluster_centers_[order]), atol=1e-3, rtol=0)
        assert ours.counts[0, 0].tolist() == [int((theirs.labels_ == cluster).sum()) for cluster in order]


def test_k_means_plus_plus_picks_by_squared_distance() -> None:
    # From 0, the points 1 and 3 are picked with probability 1/10 and 9/10: one iteration, one restart, many keys.
    many = 4000
    features = torch.tensor([[0.0], [0.0], [1.0], [3.0]], dtype=torch.float64).expand(many, 4, 1)
    labels = torch.zeros(many, 4, dtype=torch.int64)
    result = kmeans(features, labels, 1, 2, torch.arange(many) * 977, "k-means++", restarts=1, iterations=0)
    # Starts {0, 1} split {0, 0} | {1, 3}; {0, 3} splits {0, 0, 1} | {3}; {1, 3} splits {0, 0, 1} | {3} as well.
    pairs = (result.counts[:, 0, 0] == 2).double().mean()
    expected = 0.5 * 1 / 10 + 0.25 * 2 / 6 + 0.25 * 0  # first pick 0, then 1; first pick 1, then a 0; first pick 3
    assert abs(pairs - expected) < 0.02


@pytest.mark.parametrize("start", STARTS)
def test_few_samples_stand_for_themselves(start: Start) -> None:
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [9.0, 9.0]]], dtype=torch.float64)
    result = kmeans(features, torch.tensor([[0, 0, 0, 2]]), 3, 4, torch.tensor([0]), start)
    assert result.counts.tolist() == [[[2, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]]]
    assert torch.equal(result.vectors[0, 0, :2], features[0, :2])
    assert torch.equal(result.vectors[0, 2, 0], features[0, 3])


@pytest.mark.parametrize("start", STARTS)
def test_identical_samples_make_one_prototype(start: Start) -> None:
    result = kmeans(torch.full((1, 9, 2), 0.1), torch.zeros(1, 9, dtype=torch.int64), 1, 3, torch.tensor([1]), start)
    assert result.counts.tolist() == [[[9, 0, 0]]]
    assert_close(result.vectors[0, 0, 0], torch.full((2,), 0.1))


def test_kmeans_with_one_prototype_is_the_class_mean() -> None:
    features, labels = blobs(3, 20, 3, 4, seed=1)
    assert_close(kmeans(features, labels, 3, 1, torch.arange(3)), class_means(features, labels, 3))


def test_kmeans_clusters_in_one_space_and_averages_in_another() -> None:
    features = torch.tensor([[[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 9.0]]])
    direction = torch.nn.functional.normalize(features, dim=-1)
    result = kmeans(
        features, torch.zeros(1, 4, dtype=torch.int64), 1, 2, torch.tensor([0]), restarts=10, space=direction
    )
    assert_close(result.vectors[0, 0], torch.tensor([[5.0, 0.0], [0.0, 5.0]]))


def test_kmeans_needs_a_prototype() -> None:
    features, labels = torch.zeros(1, 2, 1), torch.zeros(1, 2, dtype=torch.int64)
    with pytest.raises(UserError, match=r"^invalid value '0' for k: "):
        kmeans(features, labels, 1, 0, torch.tensor([0]))


@quick
@given(
    clients=st.integers(1, 3),
    rows=st.integers(0, 40),
    classes=st.integers(1, 3),
    dim=st.integers(1, 3),
    eps=st.floats(0.1, 2.0),
    min_samples=st.integers(1, 6),
    seed=seeds,
)
def test_dbscan_is_scikit_learns(
    clients: int, rows: int, classes: int, dim: int, eps: float, min_samples: int, seed: int
) -> None:
    features, labels = blobs(clients, rows, classes, dim, seed, spread=0.7)
    result = dbscan(features, labels, classes, eps, min_samples)
    part = segments(labels, classes)
    regions = part.each(
        lambda some: (
            some.gather(features),
            dense_regions(some.gather(features), some.mask, eps, min_samples),
        )
    ).counts
    most = 1
    for i in range(clients):
        for c in range(classes):
            points = features[i][labels[i] == c]
            if not len(points):
                assert not result.counts[i, c].any()
                continue
            cluster = torch.tensor(DBSCAN(eps=eps, min_samples=min_samples).fit(points.numpy()).labels_)
            assert torch.equal(regions[i, c, : len(points)], cluster)
            if (cluster < 0).all():
                cluster = torch.zeros_like(cluster)  # nothing but noise: the class mean
            most = max(most, number := int(cluster.max()) + 1)
            assert result.counts[i, c].tolist() == [int((cluster == j).sum()) for j in range(result.counts.shape[-1])]
            for j in range(number):
                assert_close(result.vectors[i, c, j], points[cluster == j].mean(0), atol=1e-10, rtol=1e-10)
    assert result.counts.shape[-1] == most


def test_dbscan_gives_a_border_point_to_the_first_region_in_reach() -> None:
    # 0.0 is within 1 of a core point on either side and is itself no core point.
    points = torch.tensor([-0.9, 0.9, 0.0, 1.5, 1.6, 1.7, -1.5, -1.6, -1.7], dtype=torch.float64).view(1, -1, 1)
    result = dbscan(points, torch.zeros(1, 9, dtype=torch.int64), 1, 1.0, 4)
    assert result.counts.tolist() == [[[5, 4]]]


def test_dbscan_follows_a_long_chain() -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    result = dbscan(order.double().view(1, -1, 1), torch.zeros(1, 200, dtype=torch.int64), 1, 1.0, 2)
    assert result.counts.tolist() == [[[200]]]


def test_dbscan_clusters_in_one_space_and_averages_in_another() -> None:
    features = torch.tensor([[[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.0, 9.0]]])
    direction = torch.nn.functional.normalize(features, dim=-1)
    result = dbscan(features, torch.zeros(1, 4, dtype=torch.int64), 1, 0.1, 2, space=direction)
    assert_close(result.vectors[0, 0], torch.tensor([[5.0, 0.0], [0.0, 5.0]]))


def test_dbscan_of_nothing_is_empty() -> None:
    result = dbscan(torch.zeros(2, 3, 4), torch.full((2, 3), -1), 5, 0.5, 5)
    assert result.counts.shape == (2, 5, 1)
    assert not result.counts.any()


@pytest.mark.parametrize(
    ("eps", "min_samples", "message"),
    [(0.0, 5, "^invalid value '0.0' for eps: "), (0.5, 0, "^invalid value '0' for min_samples: ")],
)
def test_dbscan_names_a_wrong_argument(eps: float, min_samples: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dbscan(torch.zeros(1, 2, 1), torch.zeros(1, 2, dtype=torch.int64), 1, eps, min_samples)


@quick
@sizes
def test_quantile_eps_is_the_percentile_of_fourth_neighbours(
    clients: int, rows: int, classes: int, dim: int, seed: int
) -> None:
    features, labels = (
        random_features(clients, rows, dim, seed=seed),
        random_labels(clients, rows, classes=classes, seed=seed),
    )
    eps = quantile_eps(features, labels, classes)
    for i in range(clients):
        for c in range(classes):
            points = features[i][labels[i] == c].numpy()
            fourth = [sorted(np.linalg.norm(points - x, axis=1))[min(4, len(points) - 1)] for x in points]
            expected = np.percentile(fourth, 90) if fourth else 0.0
            assert float(eps[i, c]) == pytest.approx(expected, abs=1e-10)
    # A radius per class gives each class what it gets with that radius alone.
    result = dbscan(features, labels, classes, eps, 3)
    for i, c in (eps > 0).nonzero().tolist():
        alone = dbscan(features[i : i + 1], torch.where(labels[i] == c, 0, -1).unsqueeze(0), 1, float(eps[i, c]), 3)
        assert_close(one_client(alone.widen(result.counts.shape[-1]), 0).vectors[0], result.vectors[i, c])
