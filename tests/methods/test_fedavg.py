"""FedAvg: its mean is a plain loop, and clients start the next round from it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.engines.client_group import Personal, Turns
from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS, build_method, method_class, parameters
from protofed.methods.base import Clock, Server, weighted_mean
from protofed.methods.fedavg import FedAvg
from tests.reference import methods as slow
from tests.support.nets import play
from tests.support.trained_clients import client, states

quick = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**16)
CLOCK = Clock(1, 3)


@quick
@given(clients=st.integers(1, 5), seed=seeds, averaging=st.sampled_from(["samples", "uniform"]))
def test_averaging_is_the_loop(clients: int, seed: int, averaging: str) -> None:
    stacked = states(clients, seed)
    samples = torch.randint(1, 50, (clients,), generator=torch.Generator().manual_seed(seed))
    importance = samples.tolist() if averaging == "samples" else [1.0] * clients
    expected = slow.weighted_mean([client(stacked, k) for k in range(clients)], importance)
    method = build_method("fedavg", {"averaging": averaging})
    result = method.aggregate(Upload(stacked, {}, {"samples": samples}), Server(Broadcast(), CLOCK)).weights
    assert result.keys() == expected.keys()
    assert_close(dict(result), expected)
    assert torch.equal(result["batches"], stacked["batches"][0])
    assert_close(weighted_mean(stacked, torch.tensor(importance)), expected)


def test_a_client_with_more_samples_counts_for_more() -> None:
    result = weighted_mean({"w": torch.tensor([[0.0, 4.0], [8.0, 0.0]])}, torch.tensor([3, 1]))
    assert result["w"].tolist() == [2.0, 3.0]


def test_averaged_clients_start_the_next_round_from_the_mean() -> None:
    run = play("fedavg", participation=1.0, rounds=1)
    group = run.engine.groups[0]
    none = torch.zeros(2)
    turns = Turns(Clock(1, 3), run.broadcast, Personal({}, {}, {}, none, none, none, none, {}, {}, {}))
    start = group.start([3, 0], turns)
    for name, tensor in start.items():
        assert_close(tensor[0], run.broadcast.weights[name])
        assert_close(tensor[1], run.broadcast.weights[name])
        share = torch.tensor([len(client.train) for client in run.federation.clients], dtype=torch.float64)
        mean = (
            group.own.take(range(len(share)))[name] * (share / share.sum()).view(-1, *[1] * (tensor.dim() - 1))
        ).sum(0)
        assert_close(tensor[0], mean)


@quick
@given(clients=st.integers(1, 4), seed=seeds, averaging=st.sampled_from(["samples", "uniform"]))
def test_total_variances_are_those_of_all_clients_data_as_one_set(clients: int, seed: int, averaging: str) -> None:
    """Data of three channels, of which each client knows means and variances; as many of each where all count alike."""
    rng = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (clients,), generator=rng).tolist() if averaging == "samples" else [5] * clients
    data = [torch.randn(n, 3, generator=rng).double() + 3 * torch.randn(3, generator=rng) for n in sizes]
    weights = {
        "a.running_mean": torch.stack([one.mean(0) for one in data]),
        "a.running_var": torch.stack([one.var(0, correction=0) for one in data]),
        "a.weight": torch.randn(clients, 3, generator=rng),
        "alone.running_var": torch.rand(clients, 2, generator=rng),
        "batches": torch.arange(clients),
    }
    sent = Upload(weights, {}, {"samples": torch.tensor(sizes)})
    total, mean = (
        build_method("fedavg", {"averaging": averaging, "norm": norm})
        .aggregate(sent, Server(Broadcast(), CLOCK))
        .weights
        for norm in ("total", "mean")
    )
    whole = torch.cat(data)
    assert_close(total["a.running_mean"], whole.mean(0))
    assert_close(total["a.running_var"], whole.var(0, correction=0))
    assert bool((total["a.running_var"] >= mean["a.running_var"]).all())
    assert list(total) == list(mean)
    assert all(torch.equal(total[name], mean[name]) for name in total if name != "a.running_var")
    if clients == 1:
        assert torch.equal(total["a.running_var"], mean["a.running_var"])


def averaging() -> list[str]:
    return [name for name in METHODS if issubclass(method_class(name), FedAvg)]


@pytest.mark.parametrize("method", [name for name in averaging() if "norm" in parameters(method_class(name))])
def test_every_descendant_that_shares_statistics_may_average_them_so(method: str) -> None:
    """A round of all clients from the same start differs in the variances that are sent, and in nothing else."""
    one = {"clusters": 1} if method == "fesem" else {}  # a cluster of one client has its own variances
    rounds = 2 if method == "ccvr" else 1  # in the last one it sends what it had sent, with another head
    runs = [play(method, {"norm": n, **one}, rounds=rounds, participation=1.0, epochs=1) for n in ("total", "mean")]
    total, mean = (run.method.send(run.broadcast, 0).weights for run in runs)
    assert total.keys() == mean.keys()
    changed = {name for name in total if not torch.equal(total[name], mean[name])}
    if method == "ccvr":
        changed -= {"head.weight", "head.bias"}
    assert changed == {name for name in total if name.endswith("running_var")}


def test_what_averages_no_statistics_has_no_norm() -> None:
    assert not {name for name in averaging() if "norm" not in parameters(method_class(name))} - {"fedbn"}
    with pytest.raises(UserError, match="'norm' for --set with --method fedbn"):
        build_method("fedbn", {"norm": "total"})
