"""The splits: what each promises, checked against plain Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.data import SPLITS, Dataset, Split
from protofed.data.splits import _dirichlet_counts, _dirichlet_draws, cut, draw, group, long_tail
from protofed.errors import UserError
from tests.support.toy_data import PLAIN, samples, toy


def split(name: str, **parameters: object) -> Split:
    return replace(PLAIN, name=name, **parameters)  # type: ignore[arg-type]


def table(dataset: Dataset, parts: list[Tensor]) -> Tensor:
    return torch.stack([torch.bincount(dataset.train.labels[rows], minlength=len(dataset.classes)) for rows in parts])


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["iid", "dirichlet", "quantity"]),
    seed=st.integers(0, 10**6),
    clients=st.integers(1, 6),
    per_class=st.integers(6, 20),
    alpha=st.floats(0.3, 10),
    balance=st.booleans(),
)
def test_every_row_goes_to_exactly_one_client(
    name: str, seed: int, clients: int, per_class: int, alpha: float, balance: bool
) -> None:
    dataset = toy(per_class)
    parts = cut(dataset, split(name, alpha=alpha, balance=balance), clients, seed)
    assert len(parts) == clients
    assert sorted(torch.cat(parts).tolist()) == list(range(10 * per_class))
    assert min(len(rows) for rows in parts) >= 1


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_the_seed_decides(name: str) -> None:
    dataset = toy(150, domains=3)
    first, again, other = (cut(dataset, split(name), 6, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(a.tolist() != b.tolist() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", sorted(SPLITS))
def test_clients_are_disjoint_and_not_empty(name: str) -> None:
    rows = cut(toy(150, domains=3), split(name), 6, 3)
    together = torch.cat(rows).tolist()
    assert len(together) == len(set(together))
    assert len(rows) == 6
    assert all(len(r) for r in rows)


def test_iid_parts_are_equal_and_mixed() -> None:
    dataset = toy(100)
    parts = cut(dataset, split("iid"), 7, 0)
    assert {len(rows) for rows in parts} == {142, 143}
    assert (table(dataset, parts) > 0).all()


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_min_size_is_kept(name: str) -> None:
    for seed in range(5):
        parts = cut(toy(30), split(name, alpha=0.3, min_size=25), 5, seed)
        assert min(len(rows) for rows in parts) >= 25


def test_dirichlet_alpha_goes_from_uneven_to_even() -> None:
    dataset = toy(100)
    even = table(dataset, cut(dataset, split("dirichlet", alpha=1e4, balance=False), 5, 0))
    uneven = table(dataset, cut(dataset, split("dirichlet", alpha=0.05, balance=False), 5, 0))
    assert (even - 20).abs().max() <= 3
    assert (uneven == 0).sum() > 15


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(2, 8), alpha=st.floats(1e-3, 5))
def test_balance_rule(seed: int, clients: int, alpha: float) -> None:
    """A client that holds N/K images already gets none of the later classes."""
    totals = np.array([30, 5, 0, 60, 25, 40])
    counts = _dirichlet_counts(totals, alpha, True, clients, np.random.default_rng(seed))
    assert counts.sum(axis=0).tolist() == totals.tolist()
    before = counts.cumsum(axis=1) - counts
    assert (counts[before >= totals.sum() / clients] == 0).all()


def test_without_balance_a_full_client_can_get_more() -> None:
    totals = np.full(10, 50)
    counts = _dirichlet_counts(totals, 0.1, False, 5, np.random.default_rng(0))
    before = counts.cumsum(axis=1) - counts
    assert (counts[before >= 100] > 0).any()


def test_quantity_has_uneven_sizes_and_even_labels() -> None:
    dataset = toy(600)
    counts = table(dataset, cut(dataset, split("quantity", alpha=0.5, min_size=100), 5, 0)).double()
    sizes = counts.sum(1)
    assert sizes.max() > 2 * sizes.min()
    assert (counts / sizes.unsqueeze(1) - 0.1).abs().max() < 0.12


@pytest.mark.parametrize(
    ("n", "s", "class_range", "k_range"),
    [(3, 2, (2, 5), (99, 100)), (5, 3, (2, 8), (98, 101)), (9, 1, (8, 9), (100, 100)), (4, 0, (4, 4), (100, 100))],
)
def test_ways_is_fedprotos_rule(n: int, s: int, class_range: tuple[int, int], k_range: tuple[int, int]) -> None:
    dataset = toy(2200)
    labels = dataset.train.labels.tolist()
    by_class = [[row for row, label in enumerate(labels) if label == c] for c in range(10)]
    seen_ways, seen_k = set(), set()
    for seed in range(3):
        for i, rows in enumerate(cut(dataset, split("ways", ways=n, half_width=s, shots=100), 20, seed)):
            classes = sorted({labels[row] for row in rows.tolist()})
            k = len(rows) // len(classes)
            assert rows.tolist() == [row for c in classes for row in by_class[c][110 * i : 110 * i + k]]
            seen_ways.add(len(classes))
            seen_k.add(k)
    assert (min(seen_ways), max(seen_ways)) == class_range
    assert (min(seen_k), max(seen_k)) == k_range


def test_packed_ways_take_what_is_left() -> None:
    labels = [0] * 25 + [1] * 60 + [2] * 9 + [3] * 60 + [4] * 60
    dataset = Dataset.of("uneven", samples(labels), toy(1, classes=5).test, [str(c) for c in range(5)])
    by_class = [[row for row, label in enumerate(labels) if label == c] for c in range(5)]
    parts = cut(dataset, split("ways-packed", ways=2, half_width=0, shots=10), 5, 0)
    rows = torch.cat(parts).tolist()
    assert len(rows) == len(set(rows)) == 5 * 2 * 10
    taken = [0] * 5
    for part in parts:
        held = sorted({labels[row] for row in part.tolist()})
        assert len(held) == 2
        assert 2 not in held  # nine images are too few
        assert part.tolist() == [row for c in held for row in by_class[c][taken[c] : taken[c] + 10]]
        for c in held:
            taken[c] += 10
    with pytest.raises(UserError, match="--shots"):
        cut(dataset, split("ways-packed", ways=3, half_width=0, shots=10), 10, 0)


def test_nid1_has_equal_sizes_and_unequal_labels() -> None:
    dataset = toy(100)
    counts = table(dataset, cut(dataset, split("nid1", alpha=0.05), 10, 0))
    assert counts.sum(1).tolist() == [100] * 10
    assert counts.sum(0).tolist() == [100] * 10
    assert (counts.max(1).values > 40).sum() > 5
    uneven = cut(dataset, split("dirichlet", alpha=0.05, min_size=50), 10, 0)
    together = torch.cat(cut(dataset, split("nid1", alpha=0.05), 10, 0))
    assert torch.equal(together, torch.cat(uneven))  # the same images in the same order, cut elsewhere


def test_nid1_of_many_clients_takes_the_most_even_draw() -> None:
    """Where no draw gives each client half its share, as FedSC's figure 6 has with 50 clients."""
    dataset = toy(100)
    with pytest.raises(UserError, match="no split with 10 images"):
        cut(dataset, split("dirichlet", alpha=0.05, min_size=10), 50, 0)
    parts = cut(dataset, split("nid1", alpha=0.05), 50, 0)
    counts = table(dataset, parts)
    assert counts.sum(1).tolist() == [20] * 50
    assert counts.sum(0).tolist() == [100] * 10
    assert (counts.max(1).values > 10).sum() > 25
    draws = list(_dirichlet_draws(dataset, 0.05, True, 50, 0))
    best = max(draws, key=lambda draw: draw.sum(axis=1).min())
    dealt = torch.from_numpy(best)
    laid = torch.repeat_interleave(torch.arange(10).repeat(50), dealt.flatten())  # the labels, client after client
    assert torch.equal(dataset.train.labels[torch.cat(parts)], laid)


def test_domains_gives_each_client_one_domain() -> None:
    dataset = toy(30, domains=3)
    parts = cut(dataset, split("domains"), 7, 0)
    for k, rows in enumerate(parts):
        assert set(dataset.train.domains[rows].tolist()) == {k % 3}
    assert [len(rows) for rows in parts] == [34, 50, 50, 33, 50, 50, 33]


def test_nid2_classes_and_sizes() -> None:
    """The numbers of CIFAR10: 833 of every class for the last client, 4,167 of two classes for each other one."""
    labels = torch.arange(10).repeat(5000)
    dataset = Dataset.of("cifar-like", samples(labels.tolist()), toy(1).test, [str(c) for c in range(10)])
    counts = table(dataset, cut(dataset, split("nid2"), 6, 0))
    assert counts[5].tolist() == [833] * 10
    for k in range(5):
        expected = [0] * 10
        expected[2 * k : 2 * k + 2] = [4167, 4167]
        assert counts[k].tolist() == expected


@pytest.mark.parametrize(("rho", "total"), [(10, 20431), (50, 13996), (100, 12406), (200, 11203)])
def test_long_tail_totals_of_cifar10(rho: float, total: int) -> None:
    labels = torch.arange(10).repeat(5000)
    rows = long_tail(labels, 10, rho, 0)
    counts = labels[rows].bincount()
    assert len(rows) == len(set(rows.tolist())) == total
    assert counts[0] == 5000
    assert counts[9] == 5000 // rho


@pytest.mark.parametrize(("rho", "total"), [(10, 19573), (100, 10847)])
def test_long_tail_totals_of_cifar100(rho: float, total: int) -> None:
    assert len(long_tail(torch.arange(100).repeat(500), 100, rho, 0)) == total


def test_long_tail_is_not_one_short_by_rounding() -> None:
    labels = torch.arange(2).repeat(343)  # 343 / 49 is 6.999999999999999 in floating point
    assert labels[long_tail(labels, 2, 49, 0)].bincount().tolist() == [343, 7]


def test_long_tail_comes_before_the_split() -> None:
    dataset = toy(100)
    parts = cut(dataset, split("iid", rho=10.0), 4, 0)
    counts = table(dataset, parts).sum(0)
    assert counts.tolist() == [int(100 * 10 ** (-c / 9) + 1e-9) for c in range(10)]


@settings(max_examples=50, deadline=None)
@given(
    groups=st.lists(st.integers(0, 4), max_size=40),
    quota=st.lists(st.integers(0, 12), min_size=5, max_size=5).filter(any),
    seed=st.integers(0, 99),
)
def test_draw_takes_the_quota_or_what_there_is(groups: list[int], quota: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rows = draw(group(torch.tensor(groups, dtype=torch.int64), 5), torch.tensor(quota), rng).tolist()
    assert len(rows) == len(set(rows))
    for g in range(5):
        assert sum(groups[row] == g for row in rows) == min(quota[g], groups.count(g))


def test_draw_is_uniform() -> None:
    rng = torch.Generator().manual_seed(0)
    taken = torch.cat([draw([torch.arange(8)], torch.tensor([2]), rng) for _ in range(800)])
    assert taken.bincount(minlength=8).sub(200).abs().max() < 50


@pytest.mark.parametrize(
    ("flag", "name", "clients", "parameters"),
    [
        ("--split", "irichlet", 5, {}),
        ("--clients", "iid", 0, {}),
        ("--clients", "iid", 101, {}),
        ("--clients", "iid", 60, {"rho": 100.0}),
        ("--alpha", "dirichlet", 5, {"alpha": 0.0}),
        ("--alpha", "dirichlet", 5, {"alpha": float("nan")}),
        ("--alpha", "quantity", 5, {"alpha": -1.0}),
        ("--alpha", "quantity", 5, {"alpha": float("inf")}),
        ("--min-size", "dirichlet", 5, {"min_size": 0}),
        ("--min-size", "dirichlet", 5, {"min_size": 21}),
        ("--min-size", "quantity", 5, {"min_size": 21}),
        ("--ways", "ways", 2, {"ways": 1}),
        ("--ways", "ways", 2, {"ways": 10}),
        ("--shots", "ways", 2, {"shots": 0}),
        ("--shots", "ways", 2, {"shots": 10}),
        ("--half-width", "ways", 1, {"half_width": -1}),
        ("--half-width", "ways", 1, {"half_width": 13}),
        ("--half-width", "ways", 1, {"half_width": 4, "shots": 3}),
        ("--clients", "domains", 1, {}),
        ("--clients", "domains", 100, {}),
        ("--clients", "nid2", 5, {}),
        ("--long-tail", "iid", 5, {"rho": 0.5}),
    ],
)
def test_bad_input_names_the_flag(flag: str, name: str, clients: int, parameters: dict[str, float]) -> None:
    dataset = toy(10, domains=2)
    if clients == 100:  # domain 0 is the smaller one here
        dataset = replace(dataset, train=samples([0] * 100, [0] * 40 + [1] * 60))
    with pytest.raises(UserError, match=f"^invalid value '.*' for {flag}: "):
        cut(dataset, split(name, **parameters), clients, 0)


def test_without_domains_there_is_no_split_by_them() -> None:
    with pytest.raises(
        UserError, match=r"'domains' for --split: toy has no domains\nhint: .*digit-domains, "
    ) as caught:
        cut(toy(10), split("domains"), 5, 0)
    assert "mnist" not in str(caught.value.hint)  # which has none either


def test_nid2_needs_classes_in_fives() -> None:
    with pytest.raises(UserError, match="divisible by 5"):
        cut(toy(10, classes=7), split("nid2"), 6, 0)


def test_impossible_dirichlet_ends() -> None:
    with pytest.raises(UserError, match=r"'0\.001' for --alpha: (?s:.*) --min-size or --clients"):
        cut(toy(10), split("dirichlet", alpha=0.001, min_size=10, balance=False), 10, 0)


def test_misspelt_split_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'dirichlet'"):
        cut(toy(3), split("dirchlet"), 2, 0)
