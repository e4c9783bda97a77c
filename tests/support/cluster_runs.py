"""Losses, servers and whole runs of the methods that send clusters or means: FPL, FedPLVM, FedPLCC and FedProc."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fpl import FPL
from protofed.models import ModelSpec, Output
from protofed.models.net import Net
from protofed.prototypes import Prototypes, cluster_contrast
from protofed.runs.run import Run, new_run
from tests.engines.test_sequential_reference import DECAY, Federated
from tests.reference import clusters as slow
from tests.reference.methods import Learner
from tests.support.nets import Noisy, Norm, Part, assert_same_run, federation, gap, own
from tests.support.prototype_cases import random_features, random_labels

CLASSES, DIM = 4, 6
CLOCK = Clock(2, 5)
every_method = pytest.mark.parametrize("kind", [FPL, FedPLVM, FedPLCC, FedProc])


def sent(method: Method, prototypes: Prototypes) -> Broadcast:
    """A broadcast with the method's prototypes and no weights."""
    return Broadcast({}, {"global" if isinstance(method, FedProc) else "clusters": prototypes})


def loss_of(
    method: Method, features: Tensor, labels: Tensor, prototypes: Prototypes | None, clock: Clock = CLOCK
) -> Tensor:
    """The loss of given features, with all logits 0."""

    def model(x: Tensor) -> Output:
        return Output(x, x.new_zeros(len(x), 9), ())

    received = Broadcast() if prototypes is None else sent(method, prototypes)
    batch = Batch(features, labels, torch.ones(len(labels), dtype=torch.bool))
    return method.loss(cast(Net, model), batch, Turn(received, clock))


def trained(seed: int, rows: int = 24, clients: int = 5) -> Trained:
    """Clients with features in two directions a class, so that there are clusters to find."""
    rng = torch.Generator().manual_seed(seed)
    labels = random_labels(clients, rows, classes=3, seed=seed)
    middle = torch.randn(CLASSES, 2, DIM, generator=rng, dtype=torch.float64)
    side = torch.randint(0, 2, labels.shape, generator=rng)
    features = middle[labels, side] + 0.5 * random_features(clients, rows, DIM, seed=seed + 1)
    samples = torch.randint(1, 50, (clients,), generator=rng)
    weights = {"w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64), "batches": torch.arange(clients)}
    return Trained(weights, samples, features, labels, CLASSES, torch.arange(clients))


def assert_clusters(found: Prototypes, expected: slow.Clusters) -> None:
    """The same classes with the same clusters, in the same order."""
    got = slow.as_clusters(found)
    assert sorted(got) == sorted(expected)
    for c, members in expected.items():
        assert [number for _, number in got[c]] == [number for _, number in members]
        assert_close(torch.stack([g for g, _ in got[c]]), torch.stack([g for g, _ in members]))


# Every client holds classes 0 to 2, so that there are enough means for two clusters; nobody holds class 5.
CLIENTS: tuple[Part, ...] = (
    {0: 9, 1: 8, 2: 4},
    {0: 7, 1: 2, 2: 8, 3: 6},
    {0: 3, 1: 9, 2: 7},
    {0: 8, 1: 4, 2: 5, 4: 9},
    {0: 4, 1: 5, 2: 8},
    {0: 1, 1: 7, 2: 9},
    {0: 6, 1: 3, 2: 3},
    {0: 2, 1: 6, 2: 2},
    {0: 5, 1: 3, 2: 4},
)


def start(
    method: Method, engine: str = "stacked", parts: tuple[Part, ...] = CLIENTS, model: ModelSpec = Noisy, **given: Any
) -> Run:
    """A run that has not begun."""
    values: dict[str, Any] = {"participation": 0.8, "epochs": 2, "batch_size": 8, "lr": 0.02, "lr_decay": DECAY}
    values |= {"weight_decay": 1e-3, "precision": "float64", "device": "cpu", "rounds": 3, "engine": engine} | given
    return new_run(Experiment(**values), method=method, federation=federation(parts, test=30), models=[model])


@cache
def played(method: Method, engine: str) -> tuple[Run, list[Broadcast]]:
    """Three rounds, and what was received in the second and third."""
    run, received = start(method, engine), []
    for _ in range(3):
        run.play_round()
        received.append(run.broadcast)
    return run, received[:2]


def assert_engines_agree_to_rounding(method: Method, default: Method) -> None:
    """And an option changes the run: one that changes nothing would make the parity empty."""
    sequential, stacked = played(method, "sequential")[0], played(method, "stacked")[0]
    assert (sequential.engine.name, stacked.engine.name) == ("sequential", "stacked")
    assert len({tuple(line.participants) for line in stacked.history}) > 1
    assert_same_run(sequential, stacked)
    if method != default:
        assert gap(own(stacked), own(played(default, "stacked")[0])) > 1e-6


def at_work(method: Method, one_each: bool = False) -> tuple[Tensor, Tensor, Prototypes]:
    """The features and labels of everyone after a run and the prototypes they received, to which there is a contrast.

    Some class has several clusters, unless there is one mean each.
    """
    run, received = played(method, "stacked")
    group = run.engine.groups[0]
    each = [known for broadcast in received for known in broadcast.prototypes.values()]
    several = max(int(known.filled.sum(-1).max()) for known in each)
    known = each[-1]
    assert known.present.tolist()[:3] == [True] * 3
    assert not known.present[5]
    assert several == 1 if one_each else several > 1
    own = group.own.take(range(len(CLIENTS)))
    z, y = (part.flatten(0, 1) for part in run.engine.embed(group, range(len(CLIENTS)), own))
    z, y = z[y >= 0], y[y >= 0]
    assert float(cluster_contrast(z, y, known, 0.07).mean()) > 0.01
    return z, y, known


def assert_trains_exactly_as_fedavg(method: Method) -> None:
    """Table V, first row."""
    run, other = start(method), start(FedAvg())
    for _ in range(2):
        run.play_round()
        other.play_round()
    assert gap(own(run), own(other)) == 0


def means_of_the_last_epoch(learner: Learner, model: Any) -> slow.Clusters:
    """Class means of what a client saw while it trained, in the second of two epochs."""
    del model
    pairs = [pair for step in learner.seen[len(learner.seen) // 2 :] for pair in step]
    return slow.class_means(torch.stack([z for z, _ in pairs]), torch.tensor([y for _, y in pairs]))


def clusters_of_the_data(learner: Learner, model: Any) -> slow.Clusters:
    """Clusters of a client's data after its training."""
    return slow.local_clusters(learner.features(model), learner.y)


def pooled(clients: Sequence[slow.Clusters]) -> slow.Clusters:
    """Clusters of what all clients sent."""
    return slow.pool_clusters(clients, weighted=False)


def assert_the_whole_run_is_a_plain_loop(
    method: Method,
    loss: Callable[[Tensor, int, Tensor, slow.Clusters, int], Tensor],
    local: Callable[[Learner, Any], slow.Clusters],
    together: Callable[[Sequence[slow.Clusters]], slow.Clusters] = pooled,
) -> None:
    """Plain PyTorch, client by client and sample by sample, over three rounds.

    `loss` is of a feature, its label, its cross-entropy, what was received and the round; `local` is what a client
    sends, `together` what the server makes of it.
    """
    run = start(method, "sequential", model=Norm, participation=1.0, lr=0.05, momentum=0.5)
    hand, clusters = Federated(run), cast(slow.Clusters, {})
    for number in range(3):

        def term(
            module: Any, features: Tensor, labels: Tensor, number: int = number, g: slow.Clusters = clusters
        ) -> Tensor:
            """What is added to the mean cross-entropy."""
            ce = torch.nn.functional.cross_entropy(module.head(features), labels, reduction="none")
            total = torch.zeros((), dtype=torch.float64)
            for z, y, c in zip(features, labels.tolist(), ce, strict=True):
                total = total + loss(z, y, c, g, number) - c
            return total / len(labels)

        run.play_round()
        hand.train(number, (lambda: term) if number else (lambda: None))
        hand.check(run)
        clusters = together([local(learner, model) for model, learner in zip(hand.models, hand.data, strict=True)])
        (broadcast,) = run.broadcast.prototypes.values()
        assert_clusters(broadcast, clusters)
        hand.load(hand.average())
