"""FedAvg: its mean is a plain loop, and clients start the next round from it."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.engines.client_group import Personal, Turns
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, weighted_mean
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
    result = method.aggregate(Upload(stacked, {}, {"samples": samples}), Broadcast(), CLOCK).weights
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
    turns = Turns(Clock(1, 3), run.broadcast, Personal({}, {}, group.taken[[3, 0]], {}, {}))
    start = group.start([3, 0], turns)
    for name, tensor in start.items():
        assert_close(tensor[0], run.broadcast.weights[name])
        assert_close(tensor[1], run.broadcast.weights[name])
        share = torch.tensor([len(client.train) for client in run.federation.clients], dtype=torch.float64)
        mean = (
            group.own.take(range(len(share)))[name] * (share / share.sum()).view(-1, *[1] * (tensor.dim() - 1))
        ).sum(0)
        assert_close(tensor[0], mean)
