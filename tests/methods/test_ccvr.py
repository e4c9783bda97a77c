"""CCVR: FedAvg up to the last round; then Gaussians are those of all data, and the head is retrained on draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Method, Server
from protofed.methods.ccvr import CCVR
from protofed.methods.fedavg import FedAvg
from protofed.methods.server.class_gaussians import draw, gaussians, moments
from protofed.runs.run import Run
from protofed.trust.summation import summed, terms, upload_of
from tests.reference import ccvr as slow
from tests.reference import fedgh
from tests.support.nets import Noisy, federation, gap, own, play
from tests.support.one_shot import clients_of, data_of
from tests.support.trained_clients import trained
from tests.support.turns import turn_of
from tests.support.whole_runs import assert_exactly_the_same, run_of

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(clients=st.integers(1, 4), samples=st.integers(1, 9), size=st.integers(1, 4), seed=seeds)
def test_gaussians_are_those_of_the_formula_and_of_all_data(clients: int, samples: int, size: int, seed: int) -> None:
    """Class 3 is nobody's; padding does not count."""
    made = clients_of(clients, samples, 3, size, seed)
    found = moments(made.features, made.labels, made.classes)
    means, covariances = gaussians({name: value.sum(0) for name, value in found.items()})
    data = data_of(made)
    everything = np.concatenate([features for features, _ in data]), np.concatenate([labels for _, labels in data])
    for c in range(4):
        number, mean, covariance = slow.combined(data, c)
        assert int(found["counts"][:, c].sum()) == number
        assert_close(means[c], torch.from_numpy(mean))
        assert_close(covariances[c], torch.from_numpy(covariance))
        assert_close(covariances[c], torch.from_numpy(slow.local(everything, c)[2]))


def test_draws_have_the_mean_and_covariance() -> None:
    rng = torch.Generator().manual_seed(0)
    root, mean = torch.randn(3, 2, generator=rng).double(), torch.tensor([1.0, -2.0, 3.0]).double()
    covariance = root @ root.T  # of rank 2
    found = draw(mean, covariance, 0.0, 100_000, rng)
    assert_close(found.mean(0), mean, atol=0.03, rtol=0)
    assert_close(found.T.cov(), covariance, atol=0.05, rtol=0)
    shrunk = draw(mean, covariance, 0.5, 100_000, rng)
    assert_close(shrunk.T.cov(), covariance + 0.5 * torch.eye(3).double(), atol=0.05, rtol=0)
    exact = draw(mean, -1e-12 * torch.eye(3).double(), 0.0, 5, rng)  # as rounding may leave it
    assert torch.equal(exact, mean.expand(5, 3))


def calibrated(method: CCVR, sums: dict[str, Tensor], server: Server) -> tuple[Tensor, Tensor]:
    """The head by torch's SGD on virtual features, which are drawn class by class."""
    means, covariances = gaussians({name: value.sum(0) for name, value in sums.items()})
    draws, order = server.draws("features"), server.draws("head")
    held = [c for c in range(len(means)) if sums["counts"][:, c].sum() > 0]
    pairs = [{c: z} for c in held for z in draw(means[c], covariances[c], method.gamma, method.virtual, draws)]
    batches = [
        part.tolist()
        for _ in range(method.server_epochs)
        for part in torch.split(torch.randperm(len(pairs), generator=order), method.server_batch)
    ]
    weights = server.previous.weights
    return fedgh.train(weights["head.weight"], weights["head.bias"], pairs, batches, method.server_lr)


@quick
@given(clients=st.integers(1, 3), samples=st.integers(1, 6), gamma=st.sampled_from([0.0, 0.3]), seed=seeds)
def test_the_last_round_keeps_what_was_sent_and_retrains_the_head(
    clients: int, samples: int, gamma: float, seed: int
) -> None:
    method = CCVR(virtual=7, gamma=gamma, server_lr=0.1, server_epochs=2, server_batch=4)
    made = clients_of(clients, samples, 3, 3, seed)
    body = torch.randn(clients, 2, generator=torch.Generator().manual_seed(seed))
    made = made._replace(weights={"body": body, "head.weight": torch.zeros(clients, 4, 3)})
    sent = {"body": torch.ones(2), "head.weight": torch.ones(4, 3).double(), "head.bias": torch.zeros(4).double()}
    server = Server(Broadcast(sent), Clock(4, 5, tuple(range(clients)), clients, seed))
    upload = method.upload(made, turn_of(made, method))
    weight, bias = calibrated(method, dict(upload.sums), server)
    found = method.aggregate(upload, server).weights
    assert_close(dict(found), {"body": torch.ones(2), "head.weight": weight, "head.bias": bias})
    total = {name: value.sum(0) for name, value in terms(upload, summed(method, "--secure")).items()}
    assert_close(dict(method.aggregate(upload_of(total, clients), server).weights), dict(found))  # sums are enough

    before = Server(Broadcast(sent), Clock(3, 5, tuple(range(clients)), clients, seed))
    assert_close(dict(method.aggregate(upload, before).weights), dict(FedAvg().aggregate(upload, before).weights))


def test_nobody_in_the_last_round_changes_nothing() -> None:
    sent = {"head.weight": torch.ones(4, 3).double(), "head.bias": torch.zeros(4).double()}
    sums = {name: value[:0] for name, value in moments(torch.zeros(1, 1, 3), torch.zeros(1, 1).long(), 4).items()}
    found = CCVR().aggregate(Upload({}, {}, {}, sums), Server(Broadcast(sent), Clock(0, 1)))
    assert_close(dict(found.weights), sent)


def test_the_sums_are_of_the_received_model() -> None:
    clients, method = trained(4), CCVR()
    upload = method.upload(clients, turn_of(clients, method))
    assert_close(dict(upload.sums), moments(clients.features, clients.labels, 4))


def two_of_three(method: Method, engine: str, **options: Any) -> Run:
    """A run of three rounds, two of which are played."""
    run = run_of(method, engine, 0, **options)
    run.experiment = replace(run.experiment, rounds=3)
    run.play_round()
    run.play_round()
    return run


def test_up_to_the_last_round_it_is_exactly_fedavg() -> None:
    assert_exactly_the_same(two_of_three(CCVR(), "sequential"), two_of_three(FedAvg(), "sequential"))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_whole_run_ends_with_the_received_body_and_a_retrained_head(engine: str) -> None:
    method, federated = CCVR(server_lr=0.3), federation()
    run, plain = (two_of_three(some, engine, model=Noisy) for some in (method, FedAvg()))
    received = dict(run.broadcast.weights)
    assert gap(received, dict(plain.broadcast.weights)) < 1e-14  # stacked clients with rates of their own are rounded
    line = run.play_round()
    group = run.engine.groups[0]
    group.module.load_state_dict(received)
    module = group.module.eval()
    sums: dict[str, list[Tensor]] = {}
    for who in line.participants:
        client = federated.clients[who].train
        with torch.no_grad():
            features = module(group.inputs(client.x)).features
        for name, value in moments(features.unsqueeze(0), client.labels.unsqueeze(0), 6).items():
            sums.setdefault(name, []).append(value)
    server = Server(Broadcast(received), Clock(2, 3, seed=run.experiment.seed))
    weight, bias = calibrated(method, {name: torch.cat(some) for name, some in sums.items()}, server)
    expected = {**received, "head.weight": weight, "head.bias": bias}
    assert_close(dict(run.broadcast.weights), expected, atol=1e-8, rtol=0)


def test_calibration_helps_where_classes_are_skewed() -> None:
    """Each client has two of four classes."""
    clients = federation([{0: 40, 1: 40}, {2: 40, 3: 40}, {0: 40, 2: 40}], classes=4, test=120)
    options: dict[str, Any] = {"clients": clients, "participation": 1.0, "lr": 0.05}
    scores = [
        run_of(method, "stacked", 6, model=Noisy, **options).history[-1].accuracy["global/all/head"]
        for method in (CCVR(server_lr=0.1), FedAvg())
    ]
    assert scores[0] > scores[1]


@pytest.mark.parametrize(
    "params", [{"virtual": 20}, {"gamma": 1.0}, {"server_lr": 0.1}, {"server_epochs": 2}, {"server_batch": 7}]
)
def test_every_option_changes_the_run(params: dict[str, Any]) -> None:
    one, other = play("ccvr", params), play("ccvr")
    assert gap(own(one), own(other)) == 0  # clients do not see it
    assert gap(dict(one.broadcast.weights), dict(other.broadcast.weights)) > 1e-6
