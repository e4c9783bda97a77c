"""Samples that are no pictures, and clients that see the same sample in their own ways, alike in both engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from protofed.data import Client, Federation, Preparation, Samples, Shape
from protofed.experiment import Experiment
from protofed.models import Output
from protofed.runs.run import Run, new_run

CLASSES = ("a", "b", "c")


def rows(number: int, seed: int) -> Samples:
    """Rows of a table whose columns differ in scale, from client to client too."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % len(CLASSES)
    x = torch.randn(number, 4, generator=draws) + labels.unsqueeze(1)
    return Samples.of(x * torch.tensor([1.0, 10.0, 0.1, 3.0]) * (seed + 1) + seed, labels)


def table(personal: bool) -> Federation:
    pool = rows(30, 9)
    trains = [rows(24 + 5 * k, k) for k in range(3)]
    common = Preparation.of(torch.cat([train.x for train in trains]))
    clients = [Client.of(train, pool, preparation=None if personal else common) for train in trains]
    return Federation(tuple(clients), CLASSES)


class Bag(nn.Module):
    """The mean of embeddings of what is there."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.tokens, 6)
        self.head = nn.Linear(6, classes)
        self.feature_size = 6

    def forward(self, x: Tensor) -> Output:
        there = (x != 0).unsqueeze(-1).to(self.head.weight.dtype)
        features = (self.embedding(x) * there).sum(1) / there.sum(1).clamp(min=1)
        return Output(features, self.head(features), ())


def words() -> Federation:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % len(CLASSES)
    ids = torch.randint(1, 4, (60, 5), generator=draws) + 3 * labels.unsqueeze(1)
    ids[::4, 3:] = 0
    pool = Samples.of(ids, labels)
    clients = [Client.of(pool.take(torch.arange(k, 60, 3)), pool, preparation=Preparation(tokens=12)) for k in range(3)]
    return Federation(tuple(clients), CLASSES)


def played(federation: Federation, engine: str, **more: object) -> Run:
    options = {"method": "fedproto", "model": "mlp", "rounds": 2, "batch_size": 8, "precision": "float64", "lr": 0.05}
    experiment = Experiment.from_mapping(options | {"engine": engine, "device": "cpu", "threads": 1} | more)
    models = [Bag] if federation.clients[0].preparation.tokens else None
    run = new_run(experiment, federation=federation, models=models)
    while not run.over():
        run.play_round()
    return run


@pytest.mark.parametrize("method", ["fedproto", "fedavg", "mp-fedcl", "ditto"])
@pytest.mark.parametrize("data", ["common", "personal", "words"])
def test_both_engines_agree(data: str, method: str) -> None:
    federation = words() if data == "words" else table(data == "personal")
    slow, fast = (played(federation, engine, method=method) for engine in ("sequential", "stacked"))
    assert len(fast.engine.groups) == 1  # also with statistics of their own clients train side by side
    for name, value in slow.state().items():
        torch.testing.assert_close(fast.state()[name], value, rtol=1e-9, atol=1e-11)
    assert fast.history[-1].per_client == slow.history[-1].per_client


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_statistics_of_a_clients_own_are_those_of_data_that_it_standardised_itself(engine: str, method: str) -> None:
    """The same federation, standardised by hand: every client with a test pool of its own."""

    def standardised(client: Client) -> Client:
        mean, std = client.train.x.double().mean(0), client.train.x.double().std(0, correction=0)
        train, pool = (
            replace(part, x=((part.x.double() - mean) / std).float()) for part in (client.train, client.pool)
        )
        return replace(client, train=train, pool=pool, preparation=Preparation())

    federation = table(personal=True)
    by_hand = replace(federation, clients=tuple(standardised(client) for client in federation.clients))
    ours, theirs = (played(one, engine, method=method).history[-1] for one in (federation, by_hand))
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert ours.per_client == theirs.per_client


def test_what_pads_a_series_stays_zero() -> None:
    series = torch.randn(12, 2, 5, generator=torch.Generator().manual_seed(1)) + 4
    series[:, -1] = 1
    series[::2, :, 3:] = 0
    samples = Samples.of(series, torch.arange(12) % 3)
    client = Client.of(samples, samples, preparation=Preparation.of(series, masked=True))
    group = new_run(Experiment(method="fedavg"), federation=Federation((client,), CLASSES)).engine.groups[0]
    seen = group.inputs(group.x)
    assert torch.equal(seen[:, -1], series[:, -1])
    assert not bool(seen[::2, :, 3:].any())
    real = series[:, 0][series[:, 1] == 1].double()
    expected = (series[0, 0, :3] - real.mean()) / real.std(correction=0)
    torch.testing.assert_close(seen[0, 0, :3], expected.float())
