"""A client by itself, as it is in a process of its own, does to the bit what it does among the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from protofed.experiment import Experiment
from protofed.messages import Upload
from protofed.methods.base import Clock, Server
from protofed.models import build
from protofed.randomness import key
from protofed.runs.run import Run, new_run

METHODS: dict[str, dict[str, Any]] = {
    "fedproto": {"model": "cnn-18,cnn", "params": {"initial": "own"}},  # two architectures
    "mp-fedcl": {"model": "mlp", "params": {"k": 3}},
    "fedplcc": {"model": "cnn", "params": {"lambda1": 1.0}},
    "fedsc": {"model": "cnn", "epochs": 2},
    "fesem": {"model": "mlp"},  # something else is sent to each
    "fedrod": {"model": "cnn"},  # a head stays, and answers with the other
    "scaffold": {"model": "mlp"},  # clients remember, send sums and receive numbers
    "ditto": {"model": "mlp"},  # two models, and a rule of its own
    "fedheal": {"model": "mlp"},  # what is sent depends on what is remembered
    "fed3r": {"model": "mlp"},  # nobody trains, and sums are sent
    "fedpac": {"model": "cnn"},  # what was prepared is sent
    "ccvr": {"model": "cnn"},  # clients take fewer steps in the last round
    "fedlc": {"model": "cnn"},  # numbers of samples of each class are in the loss
    "fedetf": {"model": "cnn"},  # the method makes the head
    "fedtgp": {"model": "cnn"},  # the server trains, and keeps what it trains
    "feddyn": {"model": "mlp"},  # clients remember, and send weights alone
    "fednova": {"model": "mlp"},  # a number of each client's steps is sent
    "fedncm": {"model": "cnn"},  # nobody trains
    "fedcof": {"model": "cnn"},  # likewise, and the server keeps a row of each
}


def experiment(method: str) -> Experiment:
    common: dict[str, Any] = {
        "dataset": "digits",
        "train_size": 150,
        "alpha": 0.5,
        "clients": 4,
        "rounds": 3,
        "engine": "sequential",
    }
    return Experiment(**common, device="cpu", threads=1, method=method, **METHODS[method])


def alone(whole: Run, number: int) -> Run:
    """One client of a run, in a run of its own."""
    everyone = whole.federation
    only = replace(everyone, clients=(everyone.clients[number],), numbers=(number,), size=len(everyone.clients))
    return new_run(whole.experiment, federation=only)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_alone_trains_sends_and_scores_as_among_others(method: str) -> None:
    whole = new_run(experiment(method))
    clients = [alone(whole, number) for number in range(4)]
    for number_of_round in range(3):
        sent, clock = whole.broadcast, Clock(number_of_round, 3, (0, 1, 2, 3), 4, 0)
        uploads = Upload.join(
            [client.engine.round([k], whole.method.send(sent, k), clock).uploads for k, client in enumerate(clients)]
        )
        line = whole.play_round()
        made = whole.method.aggregate(uploads, Server(sent, clock))
        for name, value in whole.broadcast.flat().items():
            assert torch.equal(value, made.flat()[name]), name
        for k, client in enumerate(clients):
            own, mine = (run.engine.groups for run in (whole, client))
            (at,) = [(group, group.members.index(k)) for group in own if k in group.members]
            for name, value in mine[0].own.take([0]).items():
                assert torch.equal(value, at[0].own.take([at[1]])[name]), name
            scores = client.clients.evaluate(whole.method.send(whole.broadcast, k))
            assert scores.per_client == {name: [values[k]] for name, values in line.per_client.items()}


@pytest.mark.parametrize("initial", ["common", "own"])
def test_initial_weights_are_common_or_drawn_for_each_client(initial: str) -> None:
    run = new_run(replace(experiment("fedproto"), params={"initial": initial}))
    for group, model in zip(run.engine.groups, ("cnn-18", "cnn"), strict=True):
        for row, number in enumerate(group.members):
            address = (0, "weights", number) if initial == "own" else (0, "weights")
            drawn = build(model, (1, 8, 8), 10, key(*address)).state_dict()
            for name, value in group.own.take([row]).items():
                assert torch.equal(value[0], drawn[name]), (number, name)


def test_some_clients_of_a_federation_have_their_numbers() -> None:
    whole = new_run(experiment("fedproto"))
    some = replace(whole.federation, clients=whole.federation.clients[2:], numbers=(2, 3), size=4)
    assert list(some.members) == [2, 3]
    assert (some.total, whole.federation.total) == (4, 4)
    run = new_run(whole.experiment, federation=some)
    assert [group.members for group in run.engine.groups] == [(2, 3)]  # both of the second half: one architecture
