"""Who holds what by a column, a file, numbers of clients per domain or a part for testing, against plain Python."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data import SPLITS, Dataset, Federation, Samples, federate
from protofed.data.build import drift_of, federation_of
from protofed.data.federation import divide, everything
from protofed.data.index_files import write_division
from protofed.data.splits import ALIASES, cut
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.support.toy_data import PLAIN, toy

WAYS = [*sorted(SPLITS), *sorted(ALIASES), "by:label", "by:domain"]


def contents(samples: Samples) -> list[list[int]]:
    return [samples.x.flatten(1)[:, 0].tolist(), samples.labels.tolist(), samples.domains.tolist()]


def same(one: Federation, other: Federation) -> bool:
    """Whether clients train and are tested on the same samples in the same order."""
    pairs = list(zip(one.clients, other.clients, strict=True))
    return all(contents(a.train) == contents(b.train) for a, b in pairs) and all(
        contents(a.pool.take(a.own)) == contents(b.pool.take(b.own)) and contents(a.pool) == contents(b.pool)
        for a, b in pairs
    )


@pytest.mark.parametrize("fraction", [None, 0.25])
@pytest.mark.parametrize("name", WAYS)
def test_what_a_split_gives_can_be_written_and_read(tmp_path: Path, name: str, fraction: float | None) -> None:
    dataset = toy(150, domains=3)
    clients = None if name.startswith("by:") else 6
    split = replace(PLAIN, name=name, test_fraction=fraction)
    write_division(divide(dataset, split, clients, 3), tmp_path / "rows.json")
    read = replace(PLAIN, name=f"indices:{tmp_path / 'rows.json'}")
    first, again = federate(dataset, split, clients, 3, 0.2), federate(dataset, read, None, 3, 0.2)
    assert same(first, again)
    with pytest.raises(UserError, match="--clients"):
        federate(dataset, read, 2, 3, 0.2)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 6), fraction=st.floats(0.05, 0.9))
def test_a_part_of_what_a_client_holds_is_for_testing(seed: int, clients: int, fraction: float) -> None:
    dataset = toy(20)
    split = replace(PLAIN, name="iid", test_fraction=fraction)
    division = divide(dataset, split, clients, seed)
    assert division.test is not None
    together = [row for rows in (*division.train, *division.test) for row in rows.tolist()]
    assert sorted(together) == list(range(len(dataset.train) + len(dataset.test)))
    whole = cut(replace(dataset, train=everything(dataset)), split, clients, seed)
    for train, test, held in zip(division.train, division.test, whole, strict=True):
        assert {*train.tolist(), *test.tolist()} == {*held.tolist()}
        assert len(train) == max(1, int((1 - fraction) * len(held) + 1e-9))
    federation = federate(dataset, split, clients, seed, 0.0)
    assert sum(len(client.own) for client in federation.clients) == len(federation.clients[0].pool)
    every = everything(dataset)
    for client, test in zip(federation.clients, division.test, strict=True):
        assert contents(client.pool.take(client.own)) == contents(every.take(test))


def test_parts_are_those_of_pfllib() -> None:
    """What its README prints for MNIST: images of a client, and of them for training and testing."""
    sizes = [2630, 499, 1630, 2541, 1917, 6189, 1256, 1269, 3600, 4006]
    trained = [1972, 374, 1222, 1905, 1437, 4641, 942, 951, 2700, 3004]
    tested = [658, 125, 408, 636, 480, 1548, 314, 318, 900, 1002]
    total = sum(sizes)
    labels = torch.zeros(total, dtype=torch.int64)
    x = torch.zeros(total, 1, 1, 1, dtype=torch.uint8)
    half = total // 2
    dataset = Dataset.of("flat", Samples.of(x[:half], labels[:half]), Samples.of(x[half:], labels[half:]), ["one"])

    def given_sizes(*_: object) -> list[torch.Tensor]:
        return list(torch.split(torch.arange(total), sizes))

    SPLITS["given"] = given_sizes
    try:
        division = divide(dataset, replace(PLAIN, name="given", test_fraction=0.25), len(sizes), 0)
    finally:
        del SPLITS["given"]
    assert [len(rows) for rows in division.train] == trained
    assert division.test is not None
    assert [len(rows) for rows in division.test] == tested


def test_a_single_sample_cannot_be_trained_on_and_tested() -> None:
    with pytest.raises(UserError, match="client 0 holds a single sample"):
        divide(toy(1, test_per_class=1), replace(PLAIN, test_fraction=0.5), 20, 0)


@pytest.mark.parametrize(("name", "numbers"), [("by:label", "labels"), ("by:domain", "domains")])
def test_a_client_for_each_class_or_domain(name: str, numbers: str) -> None:
    dataset = toy(9, domains=3)
    parts = cut(dataset, replace(PLAIN, name=name), None, 0)
    values = getattr(dataset.train, numbers).tolist()
    assert [rows.tolist() for rows in parts] == [
        [row for row, value in enumerate(values) if value == one] for one in sorted(set(values))
    ]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 8), ways=st.integers(1, 10))
def test_pathological_gives_each_client_so_many_classes(seed: int, clients: int, ways: int) -> None:
    dataset = toy(20)
    labels = dataset.train.labels.tolist()
    parts = [rows.tolist() for rows in cut(dataset, replace(PLAIN, name="pathological", ways=ways), clients, seed)]
    held = [Counter(labels[row] for row in rows) for rows in parts]
    assert all(len(one) == ways for one in held)
    for c in range(10):
        shares = [one[c] for one in held if c in one]
        assert not shares or (sum(shares) == 20 and max(shares) - min(shares) <= 1)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 8), number=st.integers(1, 4))
def test_shards_are_blocks_of_the_sorted_rows(seed: int, clients: int, number: int) -> None:
    dataset = toy(16)
    labels = dataset.train.labels.tolist()
    order = sorted(range(len(labels)), key=lambda row: (labels[row], row))
    size, more = divmod(len(order), clients * number)
    ends = [size * k + min(k, more) for k in range(clients * number + 1)]
    blocks = [order[a:b] for a, b in pairwise(ends)]
    parts = cut(dataset, replace(PLAIN, name="shards", shards=number), clients, seed)
    used = []
    for rows in parts:
        left = rows.tolist()
        for _ in range(number):
            block = next(one for one in blocks if one == left[: len(one)])
            used.append(blocks.index(block))
            left = left[len(block) :]
        assert not left
    assert sorted(used) == list(range(clients * number))


def test_clients_per_domain_in_given_numbers() -> None:
    dataset = toy(30, domains=3)
    parts = cut(dataset, replace(PLAIN, name="domains", per_domain=(3, 1, 2)), None, 0)
    domains = dataset.train.domains
    assert [set(domains[rows].tolist()) for rows in parts] == [{0}, {0}, {0}, {1}, {2}, {2}]
    assert [len(rows) for rows in parts] == [34, 33, 33, 100, 50, 50]
    with pytest.raises(UserError, match="toy has 3 domains"):
        cut(dataset, replace(PLAIN, name="domains", per_domain=(3, 1)), None, 0)


def test_the_unseen_domain_is_nobodys() -> None:
    dataset = toy(30, test_per_class=6, domains=3)
    left = dataset.leave_out("domain 1")
    assert left.unseen is not None
    assert left.domains == ("domain 0", "domain 2")
    rows = {half: [d for d in getattr(dataset, half).domains.tolist() if d != 1] for half in ("train", "test")}
    for half, others in rows.items():
        assert getattr(left, half).domains.tolist() == [0 if d == 0 else 1 for d in others]
    expected = dataset.test.take((dataset.test.domains == 1).nonzero().flatten())
    assert torch.equal(left.unseen.x, expected.x)
    federation = federate(left, replace(PLAIN, name="domains"), 2, 0, 0.0)
    assert federation.unseen is left.unseen
    with pytest.raises(UserError, match="for --unseen"):
        dataset.leave_out("domain 7")
    with pytest.raises(UserError, match="toy has no domains"):
        toy(3).leave_out("toy")


TABLE = "age,ward,ill\n" + "".join(f"{age},{'ABC'[age % 3]},{age % 2}\n" for age in range(60))


@pytest.mark.parametrize("fraction", [None, 0.25])
def test_a_client_for_each_value_of_a_column(tmp_path: Path, fraction: float | None) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    asked = Experiment(
        dataset=f"csv:{tmp_path / 'people.csv'}", label="ill", split="by:ward", test_fraction=fraction, clients=3
    )
    federation = federation_of(asked)
    assert [client.train.x.shape[1] for client in federation.clients] == [1, 1, 1]  # the ward is no feature
    for ward, client in enumerate(federation.clients):
        ages = [*client.train.x.flatten().tolist(), *client.pool.take(client.own).x.flatten().tolist()]
        assert {int(age) % 3 for age in ages} == {ward}
        assert len(ages) == 20
    again = federation_of(asked)  # from the cache
    assert same(federation, again)
    assert [client.name for client in federation.clients] == [client.name for client in again.clients] == [*"ABC"]
    with pytest.raises(UserError, match="by:ward has 3"):
        federation_of(replace(asked, clients=4))
    with pytest.raises(UserError, match="another column"):
        federation_of(replace(asked, client_column="age"))
    by_label = federation_of(replace(asked, split="by:ill", clients=None))
    assert [set(client.train.labels.tolist()) for client in by_label.clients] == [{0}, {1}]
    assert [client.name for client in by_label.clients] == [*"01"]
    others = federation_of(replace(asked, split="iid", client_column="ward"))
    assert [client.name for client in others.clients] == [""] * 3  # a client is of several wards


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"clients_per_domain": "1,2"}, "it is for --split domains"),
        ({"split": "domains", "clients_per_domain": "1,,2"}, "give whole numbers from 1"),
        ({"split": "domains", "clients_per_domain": "1,2", "clients": 4}, "gives 3: leave --clients out"),
    ],
)
def test_options_that_do_not_go_together(values: dict[str, object], why: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.from_mapping(values)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"split": "by:ward"}, "columns are of tables"),
        ({"split": "by"}, "name the column or the file"),
        ({"split": "by:domain"}, "digits has no domains"),
        ({"split": "by:label", "dataset": "digits+digit-domains"}, "it divides one dataset"),
        ({"unseen": "scanned", "dataset": "digits+digit-domains"}, "of one dataset, not of several"),
        ({"split": "by:label", "drift": "gradual"}, "another seed gives the same"),
        ({"test_fraction": 0.5, "drift": "gradual"}, "what was tested would be trained on"),
        ({"split": "NaturalIdPartitioner"}, "there is none of that name"),
    ],
)
def test_experiments_that_cannot_be_divided(values: dict[str, object], why: str) -> None:
    experiment = Experiment.from_mapping({"train_size": 100, **values})
    make = federation_of if experiment.drift == "none" else drift_of
    with pytest.raises(UserError) as caught:
        make(experiment)
    assert why in str(caught.value)
