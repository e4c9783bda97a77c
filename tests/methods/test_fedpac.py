"""FedPAC: statistics, mixtures, loss and whole rounds are plain loops; one client alone keeps its own head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Clock, Turn
from protofed.methods.fedpac import FedPAC
from protofed.methods.fedproto import FedProto
from protofed.methods.fedrep import FedRep
from protofed.methods.server.mixtures import mixtures
from protofed.models.net import Net
from tests.reference import fedpac as slow
from tests.reference.served_rounds import State, by_class, features_of
from tests.support.loss_cases import CLASSES, DIM, Case
from tests.support.nets import federation, gap, own, play
from tests.support.prototype_cases import random_features, random_labels, random_prototypes
from tests.support.served_runs import played
from tests.support.trained_clients import assert_class_means, trained
from tests.support.turns import turn_of
from tests.support.whole_runs import assert_exactly_the_same, run_of

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(clients=st.integers(1, 4), samples=st.integers(1, 9), seed=seeds)
def test_statistics_are_the_loop(clients: int, samples: int, seed: int) -> None:
    features, labels = (
        random_features(clients, samples, 3, seed=seed),
        random_labels(clients, samples, classes=3, seed=seed),
    )
    labels[:, 0] = 1
    found = FedPAC().prepare(features, labels, Broadcast({"head.weight": torch.zeros(4, 3)}))
    for k in range(clients):
        h, v = slow.statistics(features[k], labels[k], 4)
        assert_close(found["h"][k], h)
        assert_close(float(found["v"][k]), max(0.0, v), atol=1e-12, rtol=1e-9)


@quick
@given(clients=st.integers(1, 5), seed=seeds, spread=st.sampled_from([0.1, 1.0, 10.0]))
def test_mixtures_are_the_best_of_all_sets(clients: int, seed: int, spread: float) -> None:
    h = random_features(clients, 6, seed=seed) * spread
    v = random_features(clients, seed=seed + 1).abs() + 0.01
    found = mixtures(h, v)
    for mine in range(clients):
        expected = torch.from_numpy(slow.mixture(list(h), v.tolist(), mine))
        assert_close(found[mine], expected, atol=1e-5, rtol=0)
    assert_close(found.sum(1), torch.ones(clients, dtype=torch.float64))


def test_mixtures_at_the_edges() -> None:
    one = random_features(1, 6, seed=1)
    assert mixtures(one, torch.zeros(1)).tolist() == [[1.0]]
    assert_close(mixtures(one.expand(4, 6), torch.zeros(4)), torch.full((4, 4), 0.25).double())  # alike in all
    assert_close(mixtures(torch.zeros(3, 6).double(), torch.zeros(3)), torch.full((3, 3), 1 / 3).double())
    far = torch.eye(3).double() * 1e3
    assert_close(mixtures(far, torch.full((3,), 1e-6)), torch.eye(3).double())  # each has its own
    noisy = mixtures(far * 1e-6, torch.tensor([1.0, 1.0, 2.0]))
    assert_close(noisy, torch.tensor([[0.4, 0.4, 0.2]] * 3).double(), atol=1e-4, rtol=0)  # nothing but variance


def loss_in(phase: int, case: Case, method: FedPAC, received: Broadcast) -> Tensor:
    return method.loss(Net(case.module), case.batch, Turn(received, Clock(1, 3), phase=phase)).detach()


@quick
@given(seed=seeds, lam=st.sampled_from([0.0, 1.0, 5.0]))
def test_the_pull_is_fedprotos_while_the_body_is_trained(seed: int, lam: float) -> None:
    case, known = Case(seed), random_prototypes(CLASSES, 1, DIM, seed=seed)
    sent, method = Broadcast({}, {"global": known}), FedPAC(lam=lam)
    assert_close(loss_in(0, case, method, sent), case.ce)
    assert torch.equal(loss_in(1, case, method, sent), case.loss(FedProto(lam=lam), sent))


def test_an_upload_has_means_and_statistics() -> None:
    clients, method = trained(4), FedPAC()
    upload = method.upload(clients, turn_of(clients, method))
    assert_class_means(upload.prototypes["means"], clients)
    assert set(upload.numbers) == {"samples", "h", "v"}


HEAD = ("head.weight", "head.bias")


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    """Two of three clients a round: who sits out keeps the head that it was given last."""
    case = played(FedPAC(lam=0.7), engine)
    body = {name: value for name, value in case.initial.items() if name not in HEAD}
    heads = [{name: case.initial[name] for name in HEAD} for _ in range(3)]
    statistics: dict[int, tuple[Tensor, float]] = {}
    prototypes: dict[int, Tensor] = {}

    def begin(who: int) -> State:
        received = {**body, **heads[who]}
        statistics[who] = slow.statistics(features_of(case.module, received, case.data[who].x), case.data[who].y, 6)
        return received

    def serve(number: int, models: dict[int, State]) -> None:
        del number
        total = sum(len(case.data[who].y) for who in models)
        for name in body:
            body[name] = torch.stack(
                [len(case.data[who].y) / total * state[name] for who, state in models.items()]
            ).sum(0)
        found: dict[int, list[Tensor]] = {}
        for who, state in models.items():
            features = features_of(case.module, state, case.data[who].x)
            for c, some in by_class(features, case.data[who].y).items():
                found.setdefault(c, []).extend(some)
        prototypes.clear()
        prototypes.update({c: torch.stack(some).mean(0) for c, some in found.items()})
        members = list(models)
        h, v = [statistics[who][0] for who in members], [statistics[who][1] for who in members]
        sent = [{name: models[who][name] for name in HEAD} for who in members]
        for place, who in enumerate(members):
            heads[who] = slow.mix(sent, slow.mixture(h, v, place))

    def term(phase: int, features: Tensor, labels: Tensor) -> Tensor:
        lost = [
            ((z - prototypes[y]) ** 2).mean() for z, y in zip(features, labels.tolist(), strict=True) if y in prototypes
        ]
        return 0.7 * torch.stack(lost).sum() / len(labels) if phase and lost else features.new_zeros(())

    trains = (lambda name: name in HEAD), (lambda name: name not in HEAD)
    expected = case.models(begin, serve, term, trains)
    for name, value in case.run.engine.groups[0].own.take(range(3)).items():
        assert_close(value, torch.stack([state[name] for state in expected]), atol=1e-6, rtol=0, msg=name)
    for who in range(3):
        sent = case.run.method.send(case.run.broadcast, who)
        assert_close(dict(sent.weights), {**body, **heads[who]}, atol=1e-6, rtol=0)
        assert not sent.kept


def test_alone_and_without_the_pull_it_is_fedrep() -> None:
    """One client's mixture is its own head."""
    options: dict[str, Any] = {"clients": federation([{0: 9, 1: 10}], test=30), "participation": 1.0}
    ours, theirs = FedPAC(lam=0.0), FedRep(personal="head")
    one, other = (run_of(method, "sequential", **options) for method in (ours, theirs))
    assert gap(own(one), own(other)) == 0
    assert_exactly_the_same(one, run_of(FedPAC(lam=0.0), "sequential", **options))


@pytest.mark.parametrize("params", [{"lam": 5.0}, {"head_epochs": 2}, {"averaging": "uniform"}])
def test_every_option_changes_the_run(params: dict[str, Any]) -> None:
    assert gap(own(play("fedpac", params)), own(play("fedpac"))) > 1e-6
