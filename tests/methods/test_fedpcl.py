"""FedPCL: both readings of its loss are plain loops, so are whole runs with Adam, and engines agree in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Server, Trained
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedsc import FedSC
from protofed.prototypes import Prototypes, slot_contrast
from tests.reference import fedpcl as slow
from tests.reference.class_vectors import Vectors, class_means, length
from tests.support import relation_runs
from tests.support.nets import Norm, federation
from tests.support.prototype_cases import random_features, random_labels, random_prototypes
from tests.support.relation_runs import CLOCK, PARTS, C, Case, D, plain_vectors
from tests.support.turns import turn_of

quick = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(seed=seeds, batch=st.integers(1, 6), clients=st.integers(1, 4))
@pytest.mark.parametrize("reading", ["paper", "code"])
def test_fedpcl_loss_is_the_loop(reading: Any, seed: int, batch: int, clients: int) -> None:
    case = Case(seed, batch, clients)
    method = FedPCL(reading=reading, temperature=0.3)
    sent = method.aggregate(Upload({}, {"sets": case.means}), Server(Broadcast(), CLOCK))
    loop = slow.fedpcl_paper if reading == "paper" else slow.fedpcl_code
    plain = plain_vectors(case.means)
    assert_close(case.loss(method, sent), loop(case.features, case.batch.y.tolist(), plain, 0.3))
    average = slow.global_means(plain)
    assert sent.prototypes["global"].present.tolist() == [c in average for c in range(C)]
    assert not sent.weights
    for c, vector in average.items():
        assert_close(sent.prototypes["global"].vectors[c, 0], vector)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_padding_of_a_batch_changes_no_loss(reading: Any) -> None:
    case = Case(1)
    case.means = random_prototypes(3, C, 1, D, seed=1, empty=0)
    case.batch = case.batch._replace(y=torch.tensor([0, 0, 1, 1, 0]))
    method = FedPCL(reading=reading)
    sent = method.aggregate(Upload({}, {"sets": case.means}), Server(Broadcast(), CLOCK))
    alone = case.loss(method, sent)
    assert bool((alone > 0).all())
    x, y, mask = case.batch
    case.batch = Batch(torch.cat([x, x[:2]]), torch.cat([y, y[:2]]), torch.cat([mask, torch.zeros(2).bool()]))
    assert_close(case.loss(method, sent)[:5], alone)


def test_fedpcl_with_unit_prototypes_is_twice_the_slot_contrast() -> None:
    """Of one client, L_g = L_p. Prototypes are means of unit vectors: only unit ones make a product a cosine."""
    case = Case(2)
    longer = random_prototypes(1, C, 1, D, seed=2)
    unit = Prototypes(nn.functional.normalize(longer.vectors, dim=-1), longer.counts)
    contrast = 2 * slot_contrast(case.features, case.batch.y, unit, 0.07)
    assert_close(case.loss(FedPCL(), Broadcast({}, {"sets": unit, "global": unit.take(0)})), contrast)
    other = case.loss(FedPCL(), Broadcast({}, {"sets": longer, "global": longer.take(0)}))
    assert float((other - contrast).abs().max()) > 1e-3


def test_fedpcl_sends_the_means_of_unit_features() -> None:
    features, labels = random_features(2, 6, D, seed=0), random_labels(2, 6, classes=C, seed=0)
    sent = FedPCL().upload(
        Trained({}, torch.tensor([6, 6]), features, labels, C, torch.tensor([1, 2])),
        turn_of(Trained({}, torch.tensor([6, 6]), features, labels, C, torch.tensor([1, 2]))),
    )
    assert not sent.weights
    for k in range(2):
        mine = labels[k] >= 0
        unit = torch.stack([z / length(z) for z in features[k][mine]])
        expected = class_means(unit, labels[k][mine].tolist())
        assert sent.prototypes["sets"].present[k].tolist() == [c in expected for c in range(C)]
        for c, (vector, number) in expected.items():
            assert_close(sent.prototypes["sets"].vectors[k, c, 0], vector)
            assert sent.prototypes["sets"].counts[k, c, 0] == number


@pytest.mark.parametrize("variant", [name for name in relation_runs.VARIANTS if name.startswith("fedpcl")])
def test_engines_agree(variant: str) -> None:
    relation_runs.assert_engines_agree(variant)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_fedpcl_is_a_plain_loop_with_adam(reading: Any) -> None:
    clients = federation(PARTS, test=30)
    run = relation_runs.start(
        FedPCL(reading=reading), clients=clients, participation=1.0, model=Norm, lr=1e-3, lr_decay=1.0
    )
    hand = relation_runs.ByHand(run)
    sets: list[Vectors] = []
    loop = slow.fedpcl_paper if reading == "paper" else slow.fedpcl_code

    def loss(k: int, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        if not sets:
            return torch.nn.functional.cross_entropy(logits, labels)
        return loop(features, labels.tolist(), sets, 0.07).mean()

    for number in range(2):
        run.play_round()
        hand.train(number, lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3), loss)
        hand.check()
        sets = []
        for k in range(4):
            unit = torch.stack([z / length(z) for z in hand.features(k)])
            sets.append({c: v for c, (v, _) in class_means(unit, hand.y[k].tolist()).items()})


def test_fedpcl_is_scored_by_the_nearest_mean_of_the_clients_own_data() -> None:
    run = relation_runs.played("fedpcl", "sequential")
    assert FedPCL().references(run.broadcast) is None
    assert FedPCL.score in run.history[-1].diagnostic
    assert not any(name.startswith("global/") for name in run.history[-1].accuracy)
    assert FedSC.score in relation_runs.played("fedsc", "sequential").history[-1].accuracy


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_fedpcl_learns(reading: Any) -> None:
    relation_runs.assert_learns(FedPCL(reading=reading), lr=0.01)
