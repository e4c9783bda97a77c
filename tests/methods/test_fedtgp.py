"""FedTGP: its server is torch's SGD on the contrast, its clients are FedProto's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server
from protofed.methods.fedproto import FedProto
from protofed.methods.fedtgp import LAYERS, FedTGP
from protofed.methods.server.trainable_prototypes import first_layers
from protofed.prototypes import Prototypes
from tests.reference import fedtgp as slow
from tests.support.loss_cases import CLASSES, DIM, Case
from tests.support.nets import gap, own, play
from tests.support.prototype_cases import random_prototypes
from tests.support.trained_clients import assert_class_means, trained
from tests.support.turns import turn_of
from tests.support.whole_runs import run_of

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


def pairs_of(means: Prototypes) -> list[tuple[torch.Tensor, int]]:
    clients, classes, _ = means.counts.shape
    return [(means.vectors[k, c, 0], c) for k in range(clients) for c in range(classes) if means.counts[k, c, 0] > 0]


@quick
@given(
    clients=st.integers(1, 4),
    classes=st.integers(1, 4),
    batch=st.integers(1, 4),
    margin=st.sampled_from(["nearest", "farthest"]),
    threshold=st.sampled_from([0.5, 100.0]),
    seed=seeds,
)
def test_the_server_is_sgd_on_the_contrast(
    clients: int, classes: int, batch: int, margin: Any, threshold: float, seed: int
) -> None:
    """Two rounds: the second goes on with the layers of the first."""
    method = FedTGP(margin=margin, threshold=threshold, server_epochs=3, server_lr=0.05, server_batch=batch)
    broadcast, layers = Broadcast(), dict[str, torch.Tensor]()
    for number in range(2):
        means = random_prototypes(clients, classes, 1, 3, seed=seed + number)
        server = Server(broadcast, Clock(number, 5, tuple(range(clients)), clients, seed))
        layers = layers or first_layers(classes, 3, server.draws("start"))
        draws, pairs = server.draws("prototypes"), pairs_of(means)
        batches = [
            part.tolist()
            for _ in range(3)
            for part in torch.split(torch.randperm(len(pairs), generator=draws), batch)
            if len(part)
        ]
        expected = slow.train(layers, pairs, batches, slow.margin(pairs, margin, threshold), 0.05)
        broadcast = method.aggregate(Upload({}, {"means": means}), server)
        found = broadcast.prototypes["global"]
        held = means.filled.any(0).squeeze(-1)
        assert torch.equal(found.present, held)
        assert_close(found.class_mean(), torch.where(held.unsqueeze(-1), expected, 0))
        assert torch.equal(found.counts, means.counts.sum(0))
        layers = {name.removeprefix(LAYERS): tensor for name, tensor in broadcast.kept.items()}
        assert method.references(broadcast) is found


def test_a_prototype_at_that_of_its_class_has_a_slope() -> None:
    """The distance 0, whose root has none."""
    server = Server(Broadcast(), Clock(0, 1, (0,), 1))
    start = first_layers(2, 3, server.draws("start"))
    at = slow.TrainablePrototypes(start)(1).detach()
    means = Prototypes(torch.stack([at, at]).view(1, 2, 1, 3), torch.ones(1, 2, 1, dtype=torch.float64))
    found = FedTGP(server_epochs=2).aggregate(Upload({}, {"means": means}), server).prototypes["global"]
    assert bool(found.vectors.isfinite().all())


def test_a_class_that_nobody_sent_is_kept_if_asked() -> None:
    first, second = (random_prototypes(2, 4, 1, 3, seed=seed, empty=0) for seed in (1, 2))
    gone = second.counts.clone()
    gone[:, 2] = 0
    second = Prototypes(second.vectors * (gone > 0).unsqueeze(-1), gone)
    for absent, there in (("drop", False), ("keep", True)):
        method = FedTGP(absent=absent, server_epochs=2)  # type: ignore[arg-type]
        one = method.aggregate(Upload({}, {"means": first}), Server(Broadcast(), Clock(0, 2)))
        two = method.aggregate(Upload({}, {"means": second}), Server(one, Clock(1, 2))).prototypes["global"]
        assert two.present.tolist() == [True, True, there, True]
        assert bool(two.vectors[2].any()) is there


@quick
@given(seed=seeds, lam=st.sampled_from([0.0, 0.1, 10.0]), metric=st.sampled_from(["mse", "l2"]))
def test_the_loss_is_fedprotos(seed: int, lam: float, metric: Any) -> None:
    case, known = Case(seed), random_prototypes(CLASSES, 1, DIM, seed=seed)
    sent = Broadcast({}, {"global": known})
    ours, theirs = FedTGP(lam=lam, metric=metric), FedProto(lam=lam, metric=metric)
    assert torch.equal(case.loss(ours, sent), case.loss(theirs, sent))


def test_class_means_are_the_loop() -> None:
    clients = trained(4)
    assert_class_means(FedTGP().upload(clients, turn_of(clients)).prototypes["means"], clients)


def test_without_the_pull_clients_train_exactly_as_those_of_fedproto() -> None:
    ours, theirs = (run_of(kind(lam=0.0, collect="eval-pass"), "sequential") for kind in (FedTGP, FedProto))
    assert gap(own(ours), own(theirs)) == 0


@pytest.mark.parametrize(
    "params",
    [{"threshold": 0.1}, {"margin": "farthest"}, {"server_epochs": 5}, {"server_lr": 0.1}, {"server_batch": 3}],
)
def test_every_option_changes_the_run(params: dict[str, Any]) -> None:
    assert gap(own(play("fedtgp", params)), own(play("fedtgp"))) > 1e-6
