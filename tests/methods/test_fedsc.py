"""FedSC: its server and losses are its equations, a whole run is a plain loop, and engines agree in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Server
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedsc import FedSC
from protofed.prototypes import Prototypes, cluster_contrast
from protofed.prototypes.relations import (
    Likeness,
    discrepancy_weights,
    mean_distances,
    relational_prototypes,
    scaled_contrast,
)
from tests.reference import fedsc as slow
from tests.reference.class_vectors import ZERO, Vectors
from tests.reference.class_vectors import class_means as plain_class_means
from tests.support import relation_runs
from tests.support.nets import Norm, federation, gap, own
from tests.support.prototype_cases import random_features, random_labels, random_prototypes
from tests.support.relation_runs import CLOCK, PARTS, C, Case, D, class_means, plain_means

quick = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(clients=st.integers(1, 6), classes=st.integers(1, 5), neighbours=st.integers(0, 6), seed=seeds)
@pytest.mark.parametrize("likeness", relation_runs.LIKENESS)
def test_fedsc_aggregates_by_equations_7_to_12(
    likeness: Likeness, clients: int, classes: int, neighbours: int, seed: int
) -> None:
    means = class_means(clients, seed, classes, 3)
    plain = plain_means(means)
    related = slow.relational(plain, neighbours, likeness)
    for weighting in ("discrepancy", "uniform"):
        method = FedSC(neighbours=neighbours, likeness=likeness, weighting=weighting)
        sent = method.aggregate(Upload({}, {"means": means}), Server(Broadcast(), CLOCK)).prototypes
        expected = slow.consistent(plain, related, classes, weighting)
        assert torch.equal(sent["relational"].counts, means.counts)
        assert sent["consistent"].present.tolist() == [c in expected for c in range(classes)]
        for c in range(classes):
            vector = expected.get(c, torch.zeros(3, dtype=torch.float64))
            assert_close(sent["consistent"].vectors[c, 0], vector)
            for k in range(clients):
                vector = related[k].get(c, torch.zeros(3, dtype=torch.float64))
                assert_close(sent["relational"].vectors[k, c, 0], vector)


def test_each_likeness_finds_its_own_neighbours() -> None:
    """Table 5 compares five; none of them is another by a different name."""
    means = random_prototypes(7, 8, 1, 3, seed=1, empty=0)
    found = [relational_prototypes(means, 2, likeness).vectors for likeness in relation_runs.LIKENESS]
    assert len(relation_runs.LIKENESS) == 5
    assert all(float((a - b).abs().max()) > 1e-3 for i, a in enumerate(found) for b in found[:i])


def test_neighbours_have_like_angles_to_the_mean_not_like_places() -> None:
    """Figure 2: two opposite prototypes at one angle to the mean are neighbours; a near one at another is not."""
    vectors = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.2, 0.9], [1.2, -0.9]], dtype=torch.float64)
    means = Prototypes(vectors.view(4, 1, 1, 2), torch.ones(4, 1, 1, dtype=torch.float64))
    by_angle = relational_prototypes(means, 1, "angle").vectors[0, 0, 0]
    by_place = relational_prototypes(means, 1, "l2").vectors[0, 0, 0]
    assert_close(by_angle, (vectors[0] + vectors[1]) / 2)
    assert_close(by_place, (vectors[0] + vectors[2]) / 2)


@quick
@given(clients=st.integers(1, 6), seed=seeds, likeness=st.sampled_from(relation_runs.LIKENESS))
def test_no_neighbours_keep_the_class_means_and_all_of_them_make_one(
    clients: int, seed: int, likeness: Likeness
) -> None:
    means = class_means(clients, seed)
    assert torch.equal(relational_prototypes(means, 0, likeness).vectors, means.vectors)
    held = means.filled.sum(0, keepdim=True).clamp(min=1).unsqueeze(-1)
    middle = (means.vectors.sum(0, keepdim=True) / held) * means.filled.unsqueeze(-1)
    assert_close(relational_prototypes(means, clients - 1, likeness).vectors, middle)


@quick
@given(clients=st.integers(1, 6), seed=seeds)
def test_discrepancy_weights_sum_to_one_over_holders(clients: int, seed: int) -> None:
    means = class_means(clients, seed)
    e = discrepancy_weights(means.counts)
    assert_close(e.sum(0), means.filled.any(0).double())
    assert torch.equal(e > 0, means.filled)
    raw = slow.discrepancy(plain_means(means), C)
    assert_close(e[:, 0, 0], torch.tensor(raw, dtype=torch.float64) / sum(raw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 3, 7, 10])
def test_balanced_clients_are_weighed_by_their_size(classes: int, dtype: torch.dtype) -> None:
    """Every d is 0, and so is d/Σd."""
    counts = torch.tensor([3.0, 3.0, 12.0], dtype=dtype).view(3, 1, 1).expand(3, classes, 1)
    e = discrepancy_weights(counts)
    sizes = torch.sigmoid(torch.tensor([3, 3, 12]) / 18).to(dtype)
    assert_close(e[:, 0, 0], sizes / sizes.sum())
    assert bool(e.isfinite().all())


def test_a_balanced_client_weighs_more_than_a_skewed_one_of_its_size() -> None:
    e = discrepancy_weights(torch.tensor([[5.0, 5.0], [9.0, 1.0]]).unsqueeze(-1))
    assert e[0, 0, 0] > e[1, 0, 0]


@quick
@given(
    seed=seeds, batch=st.integers(1, 6), clients=st.integers(1, 4), weights=st.sampled_from([(1, 1), (2, 0), (0, 3)])
)
def test_fedsc_loss_is_the_loop(seed: int, batch: int, clients: int, weights: tuple[float, float]) -> None:
    case = Case(seed, batch, clients)
    case.means = class_means(clients, seed)
    data, labels = random_features(2, 7, D, seed=seed), random_labels(2, 7, classes=C, seed=seed)
    labels[:, 0] = 1
    for u in ("paper", "none"):
        method = FedSC(U=u, rpcl_weight=weights[0], cpdr_weight=weights[1])
        sent = method.aggregate(Upload({}, {"means": case.means}), Server(Broadcast(), CLOCK))
        plain = plain_means(case.means)
        related = slow.relational(plain, 2, "angle")
        target = slow.consistent(plain, related, C, "discrepancy")
        prepared = method.prepare(data, labels, sent)
        for k in range(2):
            mine = {name: value[k] for name, value in prepared.items()}
            scale = None if u == "none" else slow.scales(list(data[k][labels[k] >= 0]), related)
            expected = [
                weights[0] * slow.rpcl(z, y, related, scale, 0.05) + weights[1] * slow.cpdr(z, y, target)
                for z, y in zip(case.features, case.batch.y.tolist(), strict=True)
            ]
            assert_close(case.loss(method, sent, mine), case.ce + torch.stack(expected))


def test_fedsc_looks_at_its_data_only_when_it_needs_u() -> None:
    data, labels = random_features(2, 4, D, seed=0), torch.tensor([[0, 1, 2, -1], [3, -1, -1, -1]])
    means = random_prototypes(3, C, 1, D, seed=0, empty=0)
    sent = FedSC().aggregate(Upload({}, {"means": means}), Server(Broadcast(), CLOCK))
    assert FedSC().prepare(data, labels, Broadcast()) == {}
    assert FedSC(U="none").prepare(data, labels, sent) == {}
    u = FedSC().prepare(data, labels, sent)["U"]
    assert u.shape == (2, 3, C, 1)
    moved = data.clone()
    moved[0, 3], moved[1, 1:] = 99, 99  # padding
    assert_close(FedSC().prepare(moved, labels, sent)["U"], u)
    assert_close(u[1, 2, 1, 0], (data[1, 0] - sent.prototypes["relational"].vectors[2, 1, 0]).norm())


@quick
@given(seed=seeds, batch=st.integers(1, 5), clients=st.integers(1, 4))
def test_one_temperature_for_all_is_the_cluster_contrast(seed: int, batch: int, clients: int) -> None:
    z, y = random_features(batch, D, seed=seed), random_labels(batch, classes=C, seed=seed)
    related = random_prototypes(clients, C, 1, D, seed=seed)
    found = scaled_contrast(z, y, related, 0.05)
    assert_close(found, cluster_contrast(z, y, related.pooled(), 0.05))
    everywhere = torch.full(related.counts.shape, 0.05, dtype=torch.float64)
    assert_close(scaled_contrast(z, y, related, everywhere), found)


def test_a_feature_on_its_prototype_is_kept_from_dividing_by_zero() -> None:
    z = random_features(1, 1, D, seed=0)
    sent = Broadcast({}, {"relational": Prototypes(z.view(1, 1, 1, D), torch.ones(1, 1, 1, dtype=torch.float64))})
    assert float(mean_distances(z, torch.tensor([[0]]), sent.prototypes["relational"])) == 0
    assert float(FedSC().prepare(z, torch.tensor([[0]]), sent)["U"]) == 1e-3


@pytest.mark.parametrize("variant", [name for name in relation_runs.VARIANTS if not name.startswith("fedpcl")])
def test_engines_agree(variant: str) -> None:
    relation_runs.assert_engines_agree(variant)


def test_every_term_and_option_was_at_work() -> None:
    """Each differs from each, so the parity above says something of it."""
    states = {name: own(relation_runs.played(name, "stacked")) for name in relation_runs.VARIANTS}
    for i, a in enumerate(relation_runs.VARIANTS):
        for b in list(relation_runs.VARIANTS)[:i]:
            assert gap(states[a], states[b]) > 1e-6, (a, b)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_without_its_terms_fedsc_is_fedavg(engine: str) -> None:
    plain, run = (
        relation_runs.play(FedAvg(), engine),
        relation_runs.play(FedSC(rpcl_weight=0.0, cpdr_weight=0.0), engine),
    )
    assert gap(own(run), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0
    assert gap(own(relation_runs.played("fedsc", engine)), own(plain)) > 1e-4


def test_fedsc_is_a_plain_loop() -> None:
    clients = federation(PARTS, test=30)
    run = relation_runs.start(
        FedSC(collect="eval-pass", rpcl_weight=0.7, cpdr_weight=0.3),
        clients=clients,
        participation=1.0,
        model=Norm,
        momentum=0.9,
        lr_decay=1.0,
    )
    hand = relation_runs.ByHand(run)
    related: list[Vectors] = []
    target: Vectors = {}
    scale: list[list[dict[int, float]]] = []

    def loss(k: int, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        total = torch.nn.functional.cross_entropy(logits, labels)
        if not related:
            return total
        terms = [
            0.7 * slow.rpcl(z, y, related, scale[k], 0.05) + 0.3 * slow.cpdr(z, y, target)
            for z, y in zip(features, labels.tolist(), strict=True)
        ]
        return total + sum(terms, ZERO) / len(terms)

    for number in range(2):
        run.play_round()
        hand.train(number, lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3), loss)
        hand.check()
        means = [plain_class_means(hand.features(k), hand.y[k].tolist()) for k in range(4)]
        related = slow.relational(means, 2, "angle")
        target = slow.consistent(means, related, 6, "discrepancy")
        share = torch.tensor([float(len(y)) for y in hand.y], dtype=torch.float64) / sum(len(y) for y in hand.y)
        states = [model.state_dict() for model in hand.models]
        names = [name for name in states[0] if "num_batches" not in name]
        average = {n: sum(w * state[n] for w, state in zip(share, states, strict=True)) for n in names}
        for model in hand.models:
            model.load_state_dict(average, strict=False)
        scale = [slow.scales(list(hand.features(k)), related) for k in range(4)]
        for c, vector in target.items():
            assert_close(run.broadcast.prototypes["consistent"].vectors[c, 0], vector, atol=1e-9, rtol=0)


def test_fedsc_learns() -> None:
    relation_runs.assert_learns(FedSC(), lr=0.05)
