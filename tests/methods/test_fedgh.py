"""FedGH: its server is torch's SGD on the class means, its rounds are plain loops, and bodies may differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.data.build import federation_of
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server
from protofed.methods.fedgh import FedGH
from protofed.runs.run import new_run
from tests.reference import fedgh as slow
from tests.reference.served_rounds import State, features_of
from tests.support.nets import gap, play
from tests.support.prototype_cases import random_prototypes
from tests.support.served_runs import played
from tests.support.trained_clients import assert_class_means, trained
from tests.support.turns import turn_of

quick = settings(max_examples=15, deadline=None)
W, B = "head.weight", "head.bias"


def orders(server: Server, number: int, epochs: int, batch: int) -> list[list[int]]:
    draws = server.draws("head")
    return [
        part.tolist() for _ in range(epochs) for part in torch.split(torch.randperm(number, generator=draws), batch)
    ]


@quick
@given(
    clients=st.integers(1, 4),
    classes=st.integers(1, 5),
    batch=st.integers(1, 4),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_the_server_is_sgd_on_class_means(clients: int, classes: int, batch: int, epochs: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    head = {W: torch.randn(classes, 3, generator=rng).double(), B: torch.randn(classes, generator=rng).double()}
    means = random_prototypes(clients, classes, 1, 3, seed=seed)
    server = Server(Broadcast(head), Clock(2, 5, tuple(range(clients)), clients, seed))
    method = FedGH(server_lr=0.3, server_epochs=epochs, server_batch=batch)
    sent = method.aggregate(Upload({}, {"means": means}), server)
    held = [{c: means.vectors[k, c, 0] for c in range(classes) if means.counts[k, c, 0] > 0} for k in range(clients)]
    batches = orders(server, sum(map(len, held)), epochs, batch)
    weight, bias = slow.train(head[W], head[B], held, batches, 0.3)
    assert_close(dict(sent.weights), {W: weight, B: bias})
    assert not sent.prototypes


def test_a_head_without_bias_and_a_round_without_means() -> None:
    head = {W: torch.ones(2, 3, dtype=torch.float64)}
    clock = Clock(0, 1, (0,), 1)
    one = random_prototypes(1, 2, 1, 3, seed=1, empty=0)
    assert list(FedGH().aggregate(Upload({}, {"means": one}), Server(Broadcast(head), clock)).weights) == [W]
    none = random_prototypes(1, 2, 1, 3, seed=1, empty=1)
    sent = FedGH().aggregate(Upload({}, {"means": none}), Server(Broadcast(head), clock))
    assert_close(dict(sent.weights), head)


def test_class_means_are_the_loop() -> None:
    clients = trained(4)
    upload = FedGH().upload(clients, turn_of(clients))
    assert_class_means(upload.prototypes["means"], clients)
    assert not upload.weights


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    method = FedGH(server_lr=0.5, server_batch=3)
    case = played(method, engine)
    sent = {name: case.initial[name] for name in (W, B)}

    def serve(number: int, models: dict[int, State]) -> None:
        held = [
            slow.class_means(features_of(case.module, state, case.data[who].x), case.data[who].y)
            for who, state in models.items()
        ]
        server = Server(Broadcast(), Clock(number, 4, seed=2))
        sent[W], sent[B] = slow.train(sent[W], sent[B], held, orders(server, sum(map(len, held)), 1, 3), 0.5)

    case.assert_same_models(case.models(lambda _: sent, serve))
    assert_close(dict(case.run.broadcast.weights), sent, atol=1e-10, rtol=0)


@pytest.mark.parametrize("params", [{"server_lr": 0.1}, {"server_epochs": 3}, {"server_batch": 4}])
def test_every_option_changes_the_run(params: dict[str, Any]) -> None:
    one, other = play("fedgh", params), play("fedgh")
    assert gap(dict(one.broadcast.weights), dict(other.broadcast.weights)) > 1e-6


def test_bodies_may_differ() -> None:
    settings = {"dataset": "digits+digit-domains", "model": "cnn-18,cnn,cnn-22", "clients": 6, "split": "iid"}
    experiment = Experiment(method="fedgh", train_size=60, batch_size=16, device="cpu", rounds=2, **settings)  # type: ignore[arg-type]
    run = new_run(experiment, federation=federation_of(experiment))
    assert len(run.engine.groups) == 4
    run.play_round()
    run.play_round()
    assert set(run.broadcast.weights) == {W, B}
