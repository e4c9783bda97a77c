"""Clients with fixed features, and whole runs of methods that make a head from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS
from protofed.methods.base import Clock, Method, Server, Trained
from protofed.methods.one_shot import OneShot
from protofed.trust.summation import summed, terms, upload_of
from tests.support.nets import Noisy, federation, play
from tests.support.prototype_cases import random_features, random_labels
from tests.support.turns import turn_of

Array = NDArray[np.float64]
Data = tuple[Array, NDArray[np.int64]]  # one client's features [n, D] and labels [n]
Solve = Callable[[Sequence[Data], int], tuple[Array, Array]]  # clients, C -> weight [C, D], bias [C]


def clients_of(number: int, samples: int, classes: int, size: int, seed: int) -> Trained:
    """Random features; some rows pad, some classes are missing at some clients, and one everywhere."""
    features = random_features(number, samples, size, seed=seed) + 0.5
    labels = random_labels(number, samples, classes=classes, seed=seed)
    labels[:, 0] = 0  # nobody is without samples
    return Trained({}, torch.full((number,), samples), features, labels, classes + 1, torch.arange(number))


def data_of(trained: Trained) -> list[Data]:
    real = [labels >= 0 for labels in trained.labels]
    return [
        (features[some].double().numpy(), labels[some].numpy())
        for features, labels, some in zip(trained.features, trained.labels, real, strict=True)
    ]


def zeros(trained: Trained) -> dict[str, Tensor]:
    size = trained.features.shape[-1]
    return {
        "head.weight": torch.zeros(trained.classes, size).double(),
        "head.bias": torch.zeros(trained.classes).double(),
    }


def served(method: Method, trained: Trained, previous: Broadcast | None = None) -> Broadcast:
    number = len(trained.samples)
    server = Server(previous or Broadcast(zeros(trained)), Clock(0, 3, tuple(range(number)), number))
    return method.aggregate(method.upload(trained, turn_of(trained)), server)


def assert_head(sent: Broadcast, expected: tuple[Array, Array], tolerance: float = 1e-8) -> None:
    weight, bias = (torch.from_numpy(part) for part in expected)
    assert_close(dict(sent.weights), {"head.weight": weight, "head.bias": bias}, atol=tolerance, rtol=tolerance)


def assert_a_client_counts_once(method: OneShot) -> None:
    trained = clients_of(3, 9, 4, 5, seed=3)
    first = served(method, trained)
    turn = turn_of(trained)._replace(taken=torch.tensor([1, 2, 1]))
    again = method.upload(trained, turn)
    assert all(not value.any() for value in again.sums.values())
    assert_close(dict(method.aggregate(again, Server(first, Clock(1, 3))).kept), dict(first.kept))


def assert_the_sum_is_enough_and_can_be_taken_back(method: OneShot) -> None:
    """As a secure server has it; and without client 1 it is what the others give."""
    trained = clients_of(3, 9, 4, 5, seed=4)
    upload, server = method.upload(trained, turn_of(trained)), Server(Broadcast(zeros(trained)), Clock(0, 1))
    total = {name: value.sum(0) for name, value in terms(upload, summed(method, "--secure")).items()}
    all_of_them = method.aggregate(upload, server)
    assert_close(dict(method.aggregate(upload_of(total, 3), server).weights), dict(all_of_them.weights))
    others = method.aggregate(upload.reorder(torch.tensor([0, 2])), server)
    minus = Upload(sums={name: -value[1:2] for name, value in upload.sums.items()})
    left = method.aggregate(minus, Server(all_of_them, Clock(1, 2)))
    assert_close(dict(left.weights), dict(others.weights), atol=1e-8, rtol=1e-8)


def assert_a_run_is_that_of_all_data(name: str, engine: str, solve: Solve) -> None:
    """Three of five clients a round: the head is made of all that took part so far, each once, by the initial body."""
    assert name in METHODS
    run = play(name, engine=engine, model=Noisy, rounds=0)
    group, clients = run.engine.groups[0], federation()
    group.module.load_state_dict(group.own.initial)
    module, seen = group.module.eval(), set[int]()
    with torch.no_grad():
        found = [module(group.inputs(client.train.x)).features.double().numpy() for client in clients.clients]
    for _ in range(3):
        seen |= set(run.play_round().participants)
        data = [(found[who], clients.clients[who].train.labels.numpy()) for who in sorted(seen)]
        assert_head(run.broadcast, solve(data, len(clients.classes)), 1e-7)
    assert len(seen) > 3
    assert "global/all/head" in run.history[-1].accuracy
    assert run.history[-1].loss == 0
