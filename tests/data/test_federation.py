"""Clients, their own test sets and validation samples, and joined federations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data import Client, Dataset, Federation, Samples, federate, join
from protofed.data.preparation import Preparation
from protofed.errors import UserError
from tests.support.toy_data import PLAIN, samples, toy

UNEVEN = replace(PLAIN, name="dirichlet", alpha=0.2)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), clients=st.integers(1, 8), name=st.sampled_from(["dirichlet", "domains", "iid"]))
def test_own_test_set_follows_the_clients_classes_and_domains(seed: int, clients: int, name: str) -> None:
    dataset = toy(40, test_per_class=20, domains=2)
    federation = federate(dataset, replace(UNEVEN, name=name), max(2, clients), seed, 0)
    ratio = len(dataset.test) / len(dataset.train)
    for client in federation.clients:
        assert client.pool is dataset.test
        own = client.own.tolist()
        assert len(own) == len(set(own))
        for c in range(10):
            for d in range(2):
                held = int(((client.train.labels == c) & (client.train.domains == d)).sum())
                drawn = [r for r in own if dataset.test.labels[r] == c and dataset.test.domains[r] == d]
                assert len(drawn) == (min(10, max(1, round(held * ratio))) if held else 0)


def test_own_test_set_has_an_address() -> None:
    dataset = toy(40, test_per_class=2)
    federation = federate(dataset, PLAIN, 2, 0, 0)
    assert all(len(client.own) == 10 for client in federation.clients)  # 20 of each class * 20 / 400 = 1
    assert not torch.equal(federation.clients[0].own, federation.clients[1].own)
    again = federate(dataset, PLAIN, 2, 0, 0)
    other = federate(dataset, PLAIN, 2, 1, 0)
    assert torch.equal(federation.clients[0].own, again.clients[0].own)
    assert not torch.equal(federation.clients[0].own, other.clients[0].own)


def test_own_test_set_is_capped_at_what_exists() -> None:
    client = federate(toy(10), replace(PLAIN, rho=100.0), 1, 0, 0).clients[0]
    assert client.counts(10).tolist() == [10, 5, 3, 2, 1, 0, 0, 0, 0, 0]
    assert client.pool.labels[client.own].bincount().tolist() == [5, 5, 5, 5, 2]  # 50 / 21 as many, of 5 each


def test_own_test_set_does_not_depend_on_validation() -> None:
    plain, held_out = (federate(toy(40), UNEVEN, 4, 0, fraction) for fraction in (0.0, 0.3))
    for a, b in zip(plain.clients, held_out.clients, strict=True):
        assert torch.equal(a.own, b.own)


def test_ways_tests_a_client_in_its_own_domains() -> None:
    train = samples([0, 1, 2] * 60, [0] * 60 + [1] * 120)
    dataset = Dataset.of("two", train, samples([0, 1, 2] * 4, [0] * 6 + [1] * 6), "abc", "xy")
    first, last = federate(dataset, replace(PLAIN, name="ways", ways=2, half_width=0), 2, 0, 0).clients
    assert set(dataset.test.domains[first.own].tolist()) == {0}
    assert set(dataset.test.domains[last.own].tolist()) == {1}


@pytest.mark.parametrize("test_per_class", [1000, 70, 30])
def test_ways_takes_fedprotos_test_slices(test_per_class: int) -> None:
    dataset = toy(400, test_per_class=test_per_class)
    federation = federate(dataset, replace(PLAIN, name="ways"), 5, 0, 0)
    for k, client in enumerate(federation.clients):
        expected = []
        for c in sorted(set(client.train.labels.tolist())):
            found = [row for row, label in enumerate(dataset.test.labels.tolist()) if label == c]
            expected += [found[(40 * k + j) % test_per_class] for j in range(min(40, test_per_class))]
        assert client.own.tolist() == expected


def test_a_class_without_test_images_is_skipped_and_a_client_without_any_is_an_error() -> None:
    dataset = Dataset.of("odd", samples([0, 0, 1, 1], [0, 1, 0, 1]), samples([0, 0], [0, 0]), "ab", "xy")
    domains = replace(PLAIN, name="domains")
    with pytest.raises(UserError, match="no sample of the classes and domains of client 1"):
        federate(dataset, domains, 2, 0, 0)
    mixed = federate(dataset, PLAIN, 1, 0, 0)
    assert mixed.clients[0].own.tolist() in ([0], [1])  # of class b and of domain y there is none


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 30), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_validation_is_taken_from_training(size: int, fraction: float, seed: int) -> None:
    train = Samples(torch.arange(size, dtype=torch.uint8).view(-1, 1, 1, 1), *torch.zeros(2, size, dtype=torch.int64))
    test = Samples.of(torch.zeros(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([0]))
    dataset = Dataset.of("one", train, test, ["a"])
    client = federate(dataset, PLAIN, 1, seed, fraction).clients[0]
    kept = client.train.x.flatten().tolist()
    held = [] if client.validation is None else client.validation.x.flatten().tolist()
    assert sorted(kept + held) == list(range(size))
    assert len(held) == min(max(1, round(fraction * size)), size - 1)


def test_no_validation_unless_asked_for() -> None:
    assert all(client.validation is None for client in federate(toy(4), PLAIN, 2, 0, 0).clients)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_bad_validation_fraction(fraction: float) -> None:
    with pytest.raises(UserError, match="--val-fraction"):
        federate(toy(4), PLAIN, 2, 0, fraction)


def test_counts_and_domain() -> None:
    test = samples([0, 1, 2])
    one = Client.of(samples([0, 0, 2], [1, 1, 1]), test)
    two = Client.of(samples([1, 2], [0, 1]), test, own=torch.tensor([1]))
    federation = Federation((one, two), ("a", "b", "c"), ("x", "y"))
    assert federation.counts.tolist() == [[2, 0, 1], [0, 1, 1]]
    assert (one.domain, two.domain) == (1, None)
    assert one.own.tolist() == [0, 1, 2]
    assert two.own.tolist() == [1]


def test_client_of_computes_mean_and_std_of_pixels_in_0_to_1() -> None:
    images = torch.tensor([0, 255, 255, 255], dtype=torch.uint8).view(2, 2, 1, 1)
    train = Samples.of(images, torch.tensor([0, 0]))
    client = Client.of(train, train)
    assert client.preparation.mean == (0.5, 1.0)
    assert client.preparation.std == (0.5, 1.0)  # the second channel is constant: left unscaled


def test_join_unites_names_and_keeps_shapes_and_pools() -> None:
    def tiny(name: str, side: int, classes: list[str]) -> Federation:
        images = torch.zeros(4, 1, side, side, dtype=torch.uint8)
        data = Samples.of(images, torch.tensor([0, 1, 0, 1]))
        return federate(Dataset.of(name, data, data, classes), PLAIN, 2, 0, 0.5)

    one, two = tiny("one", 4, ["cat", "dog"]), tiny("two", 7, ["fox", "cat"])
    joined = join([one, two])
    assert joined.classes == ("cat", "dog", "fox")
    assert joined.domains == ("one", "two")
    assert [client.train.x.shape[-1] for client in joined.clients] == [4, 4, 7, 7]
    assert [client.domain for client in joined.clients] == [0, 0, 1, 1]
    assert joined.clients[2].pool is joined.clients[3].pool
    assert joined.clients[1].pool is not joined.clients[2].pool
    for before, after in zip(one.clients + two.clients, joined.clients, strict=True):
        names = one.classes if before in one.clients else two.classes
        assert before.validation is not None
        assert after.validation is not None
        for old, new in (
            (before.train, after.train),
            (before.pool, after.pool),
            (before.validation, after.validation),
        ):
            assert [names[i] for i in old.labels.tolist()] == [joined.classes[i] for i in new.labels.tolist()]
        assert torch.equal(before.own, after.own)


GOOD = samples([0, 1])


@pytest.mark.parametrize(
    ("word", "images", "labels", "domains"),
    [
        ("x", GOOD.x.double(), GOOD.labels, GOOD.domains),
        ("x", GOOD.x[:, 0, 0, 0], GOOD.labels, GOOD.domains),
        ("labels", GOOD.x, GOOD.labels[:1], GOOD.domains),
        ("labels", GOOD.x, GOOD.labels.int(), GOOD.domains),
        ("labels", GOOD.x, -GOOD.labels, GOOD.domains),
        ("domains", GOOD.x, GOOD.labels, GOOD.domains[:1]),
    ],
)
def test_samples_are_checked(word: str, images: torch.Tensor, labels: torch.Tensor, domains: torch.Tensor) -> None:
    with pytest.raises(UserError, match=f"^invalid value '.*' for {word}: "):
        Samples(images, labels, domains)


def test_federations_are_checked() -> None:
    client = Client.of(GOOD, GOOD)
    with pytest.raises(UserError, match="at least one"):
        Federation((), ("a", "b"))
    with pytest.raises(UserError, match="go up to 1"):
        Federation((client,), ("a",))
    with pytest.raises(UserError, match="go up to 2"):
        Federation((replace(client, validation=samples([2])),), ("a", "b"))
    with pytest.raises(UserError, match="appear once"):
        Federation((client,), ("a", "a"))
    with pytest.raises(UserError, match="go up to 3"):
        Federation((Client.of(samples([0], [3]), GOOD),), ("a", "b"))
    with pytest.raises(UserError, match="from 0 to 1"):
        Federation((Client.of(GOOD, GOOD, own=torch.tensor([2])),), ("a", "b"))
    with pytest.raises(UserError, match="one per channel"):
        Federation((replace(client, preparation=Preparation("pixels", (0.1, 0.2), (1.0, 1.0))),), ("a", "b"))
    with pytest.raises(UserError, match="at least one sample"):
        Federation((replace(client, train=GOOD.take(torch.arange(0))),), ("a", "b"))
